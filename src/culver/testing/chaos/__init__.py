"""Chaos: a real cluster of broker processes under load and faults, judged by the simulator's checker.

    make chaos SECONDS=300 SEED=7

Brokers are killed, frozen, cut off from each other and from ZooKeeper, restarted, added and drained, while Kafka
clients write, read and commit; those that work in transactions are killed and frozen as well. `gates` is the
network in between, `nemesis` does the damage to brokers and `clients` to clients, `run` is one run.
"""
