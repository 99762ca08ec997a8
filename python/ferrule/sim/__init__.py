"""A simulated vLLM 0.33: its real wire, deterministic answers, faults by name. For the demo, the
tests and load scripts.

`answer` decides what is said (pure), `wire` how vLLM words it, `faults` what goes wrong on purpose;
`stream` and `server` are the I/O. Nothing here knows the proxy.
"""

from ferrule.sim.completion import SimSettings
from ferrule.sim.faults import FAULTS
from ferrule.sim.server import create_sim_app, listen, main, run_sim

__all__ = ["FAULTS", "SimSettings", "create_sim_app", "listen", "main", "run_sim"]
