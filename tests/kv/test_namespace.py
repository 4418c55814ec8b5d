"""Namespaces: another value of anything that keys and values depend on never meets old blocks; the same one does."""

from __future__ import annotations

from itertools import combinations

import pytest

from workbench.kv.caching_pool import INDEXES, CachingPool
from workbench.kv.namespace import namespace

FIELDS = {"weights": "ab12", "dtype": "float32", "kv_cache_dtype": "float32", "rope": "theta 1e4", "block_size": "16"}
VARIANTS = [
    (FIELDS, ""),
    (FIELDS, "tenant"),
    (FIELDS, "tenant2"),
    *(({**FIELDS, name: f"{value}x"}, "") for name, value in FIELDS.items()),
    # Parts that run together into the same text, and salts that look like fields.
    ({**FIELDS, "dtype": "float", "kv_cache_dtype": "32float32"}, ""),
    ({**FIELDS, "dtypef": "loat32"}, ""),
    ({"weights": "ab12"}, ""),
    ({"weights": "ab12", "cache_salt": "tenant"}, ""),
    ({"weights": "ab12"}, "tenant"),
    ({"weights": "ab1"}, "2"),
    ({"weights": ""}, ""),
    ({}, "weights"),
    ({}, ""),
]


def test_every_difference_is_another_namespace() -> None:
    assert all(namespace(*one) != namespace(*other) for one, other in combinations(VARIANTS, 2))
    assert all(len(namespace(*one)) == 32 for one in VARIANTS)


def test_the_order_of_fields_is_none_of_it() -> None:
    assert namespace(dict(reversed(FIELDS.items())), "s") == namespace(FIELDS, "s")


@pytest.mark.parametrize("index", INDEXES)
def test_blocks_of_another_namespace_are_never_met(index: str) -> None:
    pool = CachingPool(200, 2, index)
    tokens = [1, 2, 3, 4, 5, 6]
    for number, (fields, salt) in enumerate(VARIANTS):
        pool.fields = {name: value for name, value in fields.items() if name != "block_size"}
        fresh = not any(
            pool.fields == {k: v for k, v in other.items() if k != "block_size"} and salt == its
            for other, its in VARIANTS[:number]
        )
        name = str(number)
        pool.enroll(name, salt)
        assert bool(pool.match(name, tokens, 3)) is not fresh, (fields, salt)
        pool.open(name)
        pool.adopt(name, [])
        pool.grow(name, 3)
        pool.publish(name, tokens, 6)
        pool.release(name)
        assert len(pool.match(name, tokens, 3)) == 3, "the same namespace meets them"
        pool.dismiss(name)
        pool.check()
