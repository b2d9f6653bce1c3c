"""What the metadata store holds: the paths, and the form of the values under them.

| path | value | lives |
|---|---|---|
| /cluster | ClusterEntry | for good |
| /registrations/ID | RegistrationEntry; its version is the broker's epoch | until the broker is removed |
| /brokers/ID | AliveEntry | as long as the broker's session |
| /controller | ControllerEntry | as long as the controller's session |
| /controller-epoch | nothing; its version is the controller's epoch | for good |
| /topics/NAME | TopicEntry | as long as the topic |
| /partitions/TOPICID-N | PartitionEntry; its version is the partition epoch | as long as the topic |
| /config/broker-ID, /config/broker-default | settings by name | for good |

A partition's path holds the topic's id, not its name: a topic made anew under an old name starts with other paths,
so that nobody's compare-and-set takes the new partition for the old one.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from culver.core.image import PartitionImage

CLUSTER = "/cluster"
REGISTRATIONS = "/registrations/"
BROKERS = "/brokers/"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller-epoch"
TOPICS = "/topics/"
PARTITIONS = "/partitions/"
CONFIG = "/config/"
BROKER_CONFIG = "/config/broker-"
DEFAULT_BROKER_CONFIG = "/config/broker-default"

Value = TypeVar("Value")


class ClusterEntry(msgspec.Struct, frozen=True):
    """The cluster's name, and the secret by which its brokers know each other."""

    id: str
    secret: str


class RegistrationEntry(msgspec.Struct, frozen=True):
    """A broker that belongs to the cluster, whether it runs or not."""

    host: str
    port: int
    rack: str | None = None
    # The id of its data directory: another directory under the same broker id is another broker.
    directory: str = ""


class AliveEntry(msgspec.Struct, frozen=True):
    """A broker that runs: in which epoch, and from which data directory."""

    epoch: int
    directory: str = ""


class ControllerEntry(msgspec.Struct, frozen=True):
    """The broker that elects leaders."""

    broker: int


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic. It exists for everyone once this entry does; its partitions have been made before."""

    id: str
    partitions: int
    config: dict[str, str] = {}


class PartitionEntry(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a partition, who leads it, and since which epoch."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


encode = msgspec.json.encode


def decode(value: bytes, kind: type[Value]) -> Value:
    """Raises ValueError when the bytes are something else."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def partition_path(topic_id: bytes, index: int) -> str:
    return f"{PARTITIONS}{topic_id.hex()}-{index}"


_decode_partition = msgspec.json.Decoder(PartitionEntry).decode


def partition_image(index: int, value: bytes, version: int) -> PartitionImage:
    """A partition as the store has it."""
    entry = _decode_partition(value)
    return PartitionImage(
        index,
        entry.leader,
        entry.leader_epoch,
        entry.replicas,
        entry.isr,
        entry.elr,
        version,
        entry.adding,
        entry.removing,
    )


def partition_value(partition: PartitionImage) -> bytes:
    """What the store keeps of a partition."""
    return encode(
        PartitionEntry(
            partition.replicas,
            partition.isr,
            partition.leader,
            partition.leader_epoch,
            partition.elr,
            partition.adding,
            partition.removing,
        )
    )
