"""What a client may do with a resource, as a bit set; without access control that is everything."""

from __future__ import annotations

# Bits by the protocol's numbers of operations: read 3, write 4, create 5, delete 6, alter 7, describe 8,
# cluster action 9, describe configs 10, alter configs 11, idempotent write 12.
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << bit for bit in range(3, 9))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (1 << bit for bit in range(9, 13))

ON_TOPIC = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
ON_GROUP = _READ | _DELETE | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
ON_CLUSTER = (
    _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE
)

# The answer to a client that did not ask.
NOT_ASKED = -0x80000000
