"""Streams of random numbers stay those of their seed and path, on which every recorded run depends."""

from __future__ import annotations

import hashlib

import torch

from mmgrpo.randomness import derive, deterministic, stream


def test_a_seed_is_63_bits_of_the_hash_of_its_path():
    digest = hashlib.blake2b(b"3/start/0", digest_size=8).hexdigest()
    assert derive(3, "start", 0) == int(digest, 16) // 2
    seeds = {derive(seed, name, slot) for seed in range(5) for name in ("start", "tokens") for slot in range(5)}
    assert len(seeds) == 50 and 2**62 < max(seeds) < 2**63
    first, again = (torch.rand(3, generator=stream(3, "start", 0)) for _ in range(2))
    assert torch.equal(first, again) and stream(3, "start", 0).initial_seed() == derive(3, "start", 0)


def modes() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def test_kernels_are_deterministic_inside_and_what_they_were_outside():
    before = modes()
    try:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
        with deterministic():
            assert modes() == (True, True, False)
            with deterministic(False):
                assert modes() == (True, True, False), "an outer request holds"
        assert modes() == (False, False, True)
        with deterministic(False):
            assert modes()[0] is False
        torch.use_deterministic_algorithms(True)  # by the caller, as strict as possible
        with deterministic():
            assert modes() == (True, False, True)
        assert modes() == (True, False, True)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = before[2]
