"""A whole cluster in one thread: real broker code on virtual time, a simulated network and faulty disks.

    python -m culver.testing.simulation --seeds 200      # or: make simulate SEEDS=200
    python -m culver.testing.simulation --seed 17        # the same run again, with its trace

Everything that happens follows from the seed: one number replays a run exactly.
"""
