"""What holds for requests to one model: dialect, engine, window, media. Built by the catalog."""

from __future__ import annotations

from typing import Literal

import msgspec

from ferrule.dialects import Dialect
from ferrule.engines import Profile


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How requests for one model are translated."""

    dialect: Dialect
    engine: Profile
    upstream: str
    """The model's name at the backend."""
    images: bool = False
    context_window: int | None = None
    effort: tuple[str, ...] | None = None
    """The tiers the model takes; None: not verified, so forwarded unchecked."""
    budget: Literal["refuse", "engine", "edge"] | None = None
    """The model's own `thinking_budget` setting; None: what the dialect says."""
    media_hosts: frozenset[str] = frozenset()
    """Hosts from which image URLs are passed on."""
    system_first: bool = False
    """The chat template takes a system message only at the very start."""
    split_think: bool = False
    can_continue: bool = True
    """Whether the model's template can go on from a partial assistant message."""

    @property
    def continues(self) -> bool:
        """Whether the backend continues a trailing assistant message."""
        return self.can_continue and (
            self.engine.can_continue_final or self.engine.continues_unasked
        )

    @property
    def budget_keeper(self) -> Literal["refuse", "engine", "edge"]:
        """Who enforces a thinking budget. A cap that cannot be enforced is refused."""
        wanted = self.budget or ("refuse" if self.dialect.thinking_budget == "refuse" else "engine")
        if wanted == "engine" and self.engine.budget_field is None:
            wanted = "edge"
        if wanted == "edge" and not self.continues:
            return "refuse"
        return wanted
