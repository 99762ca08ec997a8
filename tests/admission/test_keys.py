"""Keys: which headers authenticate a tenant, which files are refused, and that no key is shown."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path

import msgspec
import pytest
import yaml

from ferrule.admission import keys
from ferrule.admission.keys import ANONYMOUS, KeyRing, Tenant, generate_key
from ferrule.config import ConfigError
from ferrule.errors import Failure
from ferrule.http.response import failure_headers

KEY, OTHER = "fk-canary-one", "fk-canary-two"
MISSING = "Unauthorized: No API key provided."
INVALID = "Unauthorized: Invalid API key."


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing(
        {
            digest(KEY): Tenant(name="team-a"),
            digest(OTHER): Tenant(name="team-b"),
            digest("ключ"): Tenant(name="team-c"),
        }
    )


@pytest.mark.parametrize(
    ("x_api_key", "authorization", "name"),
    [
        (KEY, None, "team-a"),
        (None, f"Bearer {KEY}", "team-a"),
        (None, f"bearer {KEY}", "team-a"),
        (None, f"  BEARER   {KEY}  ", "team-a"),
        (f" {KEY} ", None, "team-a"),
        (KEY, "Bearer wrong", "team-a"),
        ("wrong", f"Bearer {KEY}", "team-a"),
        (KEY, f"Bearer {OTHER}", "team-a"),
        ("", f"Bearer {KEY}", "team-a"),
        (KEY, "Basic dTpw", "team-a"),
        ("ключ", None, "team-c"),
    ],
)
def test_p07_one_valid_key_is_enough(
    ring: KeyRing, x_api_key: str | None, authorization: str | None, name: str
) -> None:
    assert ring.authenticate(x_api_key, authorization, MISSING).name == name


@pytest.mark.parametrize(
    ("x_api_key", "authorization", "message", "gate"),
    [
        (None, None, MISSING, False),
        ("", None, MISSING, False),
        (None, "Bearer", MISSING, False),
        (None, "Bearer ", MISSING, False),
        (None, f"Basic {KEY}", MISSING, False),
        (None, KEY, MISSING, False),
        ("random", None, INVALID, True),
        (None, "Bearer random", INVALID, True),
        ("random", "Bearer other", INVALID, True),
        ("x" * 65536, None, INVALID, True),
        (None, "Bearer " + "x" * 65536, INVALID, True),
        ("\udcff\udcfe", None, INVALID, True),
        ("é\x00北", "Bearer \ud800", INVALID, True),
        (KEY.upper(), None, INVALID, True),
        (digest(KEY).hex(), None, INVALID, True),
    ],
)
def test_p07_everything_else_is_a_401(
    ring: KeyRing, x_api_key: str | None, authorization: str | None, message: str, gate: bool
) -> None:
    with pytest.raises(Failure) as raised:
        ring.authenticate(x_api_key, authorization, MISSING)
    failure = raised.value
    assert (failure.status, failure.kind, failure.message, failure.is_admission) == (
        401,
        "authentication_error",
        message,
        gate,
    )
    assert dict(failure_headers(failure)) == {"x-should-retry": "false"}


def test_p09_the_match_is_compared_in_constant_time(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return False

    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    with pytest.raises(Failure):
        ring.authenticate(KEY, None, MISSING)
    assert compared == [(digest(KEY), digest(KEY))]


def test_a_key_is_never_shown(ring: KeyRing, tmp_path: Path) -> None:
    wrong = "-".join(["fk", "wrong", "canary"])
    with pytest.raises(Failure) as raised:
        ring.authenticate(wrong, None, MISSING)
    shown = repr(ring) + str(ring.tenants) + "".join(traceback.format_exception(raised.value))
    assert "canary" not in shown
    with pytest.raises(ConfigError) as refused:
        KeyRing.load(write_keys(tmp_path, f"keys: [{{name: a, sha256: {KEY}}}]"))
    assert "canary" not in str(refused.value)


def test_an_open_ring_admits_everyone() -> None:
    assert KeyRing.open().authenticate("anything", None, MISSING) is ANONYMOUS
    assert not ANONYMOUS.has_limits


@pytest.mark.parametrize(
    ("patterns", "names", "allowed"),
    [
        (("*",), ("m",), True),
        (("m",), ("m",), True),
        (("m",), ("M",), False),
        (("claude-*",), ("claude-haiku-4-5", "q"), True),
        (("q",), ("claude-haiku-4-5", "q"), True),
        (("claude-*-5", "x"), ("claude-haiku-4-5",), True),
        (("a.c",), ("abc",), False),
        (("a?c",), ("abc",), False),
        (("[ab]",), ("a",), False),
        ((), ("m",), False),
    ],
)
def test_models_of_a_key(patterns: tuple[str, ...], names: tuple[str, ...], allowed: bool) -> None:
    tenant = Tenant(name="t", models=patterns)
    assert tenant.may_use(*names) is allowed
    if allowed:
        tenant.check_model(*names)
    else:
        with pytest.raises(Failure) as raised:
            tenant.check_model(*names)
        assert (raised.value.status, raised.value.kind) == (403, "permission_error")


def write_keys(folder: Path, text: str) -> Path:
    path = folder / "keys.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    text = f"""
keys:
  - name: team-a
    sha256: "{digest(KEY).hex()}"
    models: ["claude-*"]
    requests_per_minute: 600
    tokens_per_minute: 2000000
    concurrency: 32
  - {{name: team-b, sha256: "{digest(OTHER).hex()}"}}
"""
    ring = KeyRing.load(write_keys(tmp_path, text))
    assert ring.authenticate(KEY, None, MISSING) == Tenant(
        name="team-a",
        models=("claude-*",),
        requests_per_minute=600,
        tokens_per_minute=2_000_000,
        concurrency=32,
    )
    assert ring.authenticate(OTHER, None, MISSING) == Tenant(name="team-b")


HEX = "ab" * 32


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "keys: [{name: a, sha256: abc}]",
            [
                "keys.0.sha256: expected 64 hex digits in lower case: the SHA-256 of the key, "
                "never the key"
            ],
        ),
        (
            f"keys: [{{name: a, sha256: {HEX.upper()}}}]",
            [
                "keys.0.sha256: expected 64 hex digits in lower case: the SHA-256 of the key, "
                "never the key"
            ],
        ),
        (
            f"keys: [{{name: a, sha256: {HEX}}}, {{name: b, sha256: {HEX}}}]",
            ["keys.1.sha256: is the same key as keys.0"],
        ),
        (
            f"keys: [{{name: a, sha256: {HEX}}}, {{name: a, sha256: {'cd' * 32}}}]",
            ["keys.1.name: `a` is already the name of keys.0"],
        ),
        (
            f"keys: [{{name: anonymous, sha256: {HEX}}}]",
            ["keys.0.name: expected up to 64 letters, digits and . _ @ -, not `anonymous`"],
        ),
        (
            f"keys: [{{name: a, sha256: {HEX}, concurency: 3}}]",
            ["keys.0.concurency: unknown setting; did you mean concurrency?"],
        ),
        (
            f"keys: [{{name: a, sha256: {HEX}, concurrency: 0}}]",
            ["keys.0.concurrency: expected a whole number >= 1"],
        ),
        (
            "keys: [{sha256: 1}]",
            ["keys.0.sha256: expected text, got a whole number", "keys.0.name: is required"],
        ),
        ("{}", ["keys: is required"]),
        ("[]", ["expected a mapping, got a list"]),
    ],
)
def test_a_bad_file_is_refused_with_the_paths(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        KeyRing.load(write_keys(tmp_path, text))
    assert [str(problem) for problem in raised.value.problems] == problems
    assert str(raised.value).startswith(f"{tmp_path / 'keys.yaml'}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        KeyRing.load(tmp_path / "none.yaml")


def test_a_new_key_and_its_entry(tmp_path: Path) -> None:
    key, entry = generate_key("team-a")
    assert len(key) == 46
    assert key.startswith("fk-")
    assert key not in entry
    assert yaml.safe_load(entry)[0]["name"] == "team-a"
    assert (
        KeyRing.load(write_keys(tmp_path, "keys:\n" + entry)).authenticate(key, None, MISSING).name
        == "team-a"
    )
    assert generate_key("team-a")[0] != key


@pytest.mark.parametrize("name", ["", "a b", "anonymous", "x" * 65, 'a"b', "-a"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(ValueError, match="expected up to 64"):
        generate_key(name)


def test_the_example_shows_every_field() -> None:
    example = Path(__file__).parents[2] / "keys.example.yaml"
    first = yaml.safe_load(example.read_text())["keys"][0]
    assert set(first) == {field.name for field in msgspec.structs.fields(keys._KeyEntry)}
    team, batch = KeyRing.load(example).tenants
    assert team == Tenant(
        name="team-a", requests_per_minute=600, tokens_per_minute=2_000_000, concurrency=32
    )
    assert (batch.may_use("claude-haiku-4-5"), batch.may_use("Qwen3.8-Flash-Next")) == (True, False)
