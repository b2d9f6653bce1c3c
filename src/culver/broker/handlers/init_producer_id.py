"""InitProducerId: a producer id for idempotence, or for the transactions of one transactional id. Serves
versions 0 to 5.

2: flexible. 3: a producer that had an id gives it, to keep its identity. 4: PRODUCER_FENCED. 5: transactions V2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.errors import ErrorCode
from culver.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


def handle(node: Node, exchange: Exchange, request: InitProducerIdRequest) -> InitProducerIdResponse | None:
    if request.transactional_id is not None:
        response: InitProducerIdResponse | None = node.transactions.handle(
            exchange, "handle_init_producer_id", request
        )
        return response

    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        # An id goes with its epoch.
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)

    def allocated(producer_id: int | None, error: BaseException | None) -> None:
        if producer_id is None:
            exchange.reply(
                InitProducerIdResponse(
                    error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_id=-1, producer_epoch=-1
                )
            )
        else:
            exchange.reply(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    taken = node.producer_ids.take(allocated)
    return None if taken is None else InitProducerIdResponse(producer_id=taken, producer_epoch=0)
