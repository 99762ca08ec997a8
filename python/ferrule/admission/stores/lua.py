"""The arithmetic of `bucket` as a script for Redis, on its clock. The contract tests run against
both.

KEYS: one tenant's counters (a hash) and its slots in use (a sorted set: tickets scored by the time
they expire).
"""

SCRIPT = """
local counters, slots = KEYS[1], KEYS[2]
local verb, lease_s = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6

local function debt(field)
  return math.max(0, (tonumber(redis.call('HGET', counters, field) or 0) or 0) - now)
end

local function keep(field, debt_s)
  redis.call('HSET', counters, field, string.format('%.6f', now + debt_s))
  local longest = math.max(debt('requests'), debt('tokens'))
  redis.call('PEXPIRE', counters, math.ceil(longest * 1000) + 1000)
end

local function hold(ticket)
  redis.call('ZADD', slots, string.format('%.6f', now + lease_s), ticket)
  redis.call('PEXPIRE', slots, math.ceil(lease_s * 1000) + 1000)
end

if verb == 'renew' then
  for i = 3, #ARGV do hold(ARGV[i]) end
  return {}
end

if verb == 'give' then
  local tpm, more = tonumber(ARGV[4]), tonumber(ARGV[5])
  redis.call('ZREM', slots, ARGV[3])
  if tpm > 0 and more ~= 0 then keep('tokens', debt('tokens') + more * 60 / tpm) end
  return {}
end

local ticket, tokens = ARGV[3], tonumber(ARGV[4])
local rpm, tpm, most = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local requests_debt, tokens_debt = debt('requests'), debt('tokens')
local requests_cost, tokens_cost = 0, 0
local refused, wait = '', 0
redis.call('ZREMRANGEBYSCORE', slots, '-inf', string.format('%.6f', now))
if most > 0 and redis.call('ZCARD', slots) >= most then refused, wait = 'concurrency', 1 end
if rpm > 0 then
  requests_cost = 60 / rpm
  local short = requests_debt + requests_cost - 60
  if short > 1e-5 and short > wait then refused, wait = 'requests', short end
end
if tpm > 0 then
  tokens_cost = tokens * 60 / tpm
  local short = tokens_debt + math.max(1, math.min(tokens, tpm)) * 60 / tpm - 60
  if short > 1e-5 and short > wait then refused, wait = 'tokens', short end
end
if refused == '' then
  requests_debt, tokens_debt = requests_debt + requests_cost, tokens_debt + tokens_cost
  if rpm > 0 then keep('requests', requests_debt) end
  if tpm > 0 then keep('tokens', tokens_debt) end
  hold(ticket)
end
local function text(number) return string.format('%.6f', number) end
return {refused, text(wait), text(requests_debt), text(tokens_debt)}
"""
