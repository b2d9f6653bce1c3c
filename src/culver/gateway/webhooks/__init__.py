"""Webhooks: records of topics, posted to a receiver's URL by a group of gateways.

A subscription says which records go where (subscription.py) and lives in a compacted topic of the cluster (store.py).
Every gateway follows that topic and runs one delivery for each subscription (delivery.py): a member of the
subscription's group that reads its partitions and posts them (endpoint.py), signed (signature.py), to an address that
may be called (target_check.py). What may be sent at which moment, and what may be committed, is decided without I/O:
window.py for one partition, patience.py for a receiver that fails, ordering.py for all of it.
"""
