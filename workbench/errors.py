"""Errors that carry a message for a person: the value, the limit, the remedy."""

from __future__ import annotations


class UsageError(ValueError):
    """What was asked for is wrong or not supported; the command line exits with 2."""


class WorkbenchError(RuntimeError):
    """What was asked for is right but failed here (no model, no network, …); the command line exits with 1."""


class IgnoredSetting(UserWarning):
    """A setting of another engine is set and changes nothing here. Names it and the option that says the same."""
