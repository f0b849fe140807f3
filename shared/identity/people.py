"""Persons, roles and rights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from starlette.requests import Request


class Right(StrEnum):
    """What a request may need."""

    READ = "read"
    OPERATE = "operate"
    """Enqueue, cancel, retry, reprioritise, pause; ask for costs."""
    REVIEW = "review"
    """Decide a review."""
    ADMINISTER = "administer"
    """Change agents' settings and prices."""


class Role(StrEnum):
    """What a person is; rights follow from it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    REVIEWER = "reviewer"
    ADMIN = "admin"


RIGHTS: dict[Role, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.READ}),
    Role.OPERATOR: frozenset({Right.READ, Right.OPERATE}),
    Role.REVIEWER: frozenset({Right.READ, Right.REVIEW}),
    Role.ADMIN: frozenset(Right),
}


@dataclass(frozen=True, slots=True)
class Person:
    """Whoever asks. `name` is what the audit keeps; `is_proved` is False where nobody was asked who they are."""

    name: str
    rights: frozenset[Right]
    by: str
    is_proved: bool = True

    def may(self, right: Right) -> bool:
        """Whether the person has this right."""
        return right in self.rights


LOCAL = Person("local", frozenset(Right), "local", is_proved=False)


def rights_of(roles: Iterable[Role]) -> frozenset[Right]:
    """The rights of several roles together."""
    return frozenset().union(*(RIGHTS[role] for role in roles))


def person_of(request: Request) -> Person:
    """The person whom the guard let in with this request."""
    person: Person = request.scope["state"]["person"]
    return person
