"""`python -m culver.testing.chaos.client_process`: a client of a chaos run that can be killed by itself.

The only argument is the duty as JSON. SIGTERM lets it finish what it has begun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from culver.testing.chaos.client_settings import DEBUG, client_settings
from culver.testing.chaos.copier import Copier, CopierDuty
from culver.testing.chaos.diary import Diary
from culver.testing.chaos.session import CALL_SECONDS, Pulse
from culver.testing.chaos.teller import Teller, TellerDuty

# How a process ends that waits in vain for its client library.
STUCK = 75
# Two times as long as a call was given.
STUCK_LOOKS = 20


def main() -> None:
    told = json.loads(sys.argv[1])
    diary = Diary(Path(told["diary"]), told["begun_s"])
    settings = client_settings(told["bootstrap"], told["name"])
    if told["log"]:
        settings |= {"log_level": 7, "debug": DEBUG}
    duty = told["duty"]
    client: Teller | Copier
    if told["role"] == "teller":
        duty["partitions"] = [(topic, index) for topic, index in duty["partitions"]]
        client = Teller(told["name"], TellerDuty(**duty), settings, diary)
    else:
        client = Copier(told["name"], CopierDuty(**duty), settings, diary)

    def stop(_number: int, _frame: object) -> None:
        client.stopping = True

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=watch, args=(client.pulse, diary), name="watch", daemon=True).start()
    client.work()
    sys.stderr.flush()
    os._exit(0)  # without librdkafka's goodbyes, which take their time


def watch(pulse: Pulse, diary: Diary) -> None:
    """End the process when a call does not return, though it was given a time.

    librdkafka may wait for ever for a coordinator that it has thrown away (confluentinc/librdkafka#5511, #5456): when a
    broker was gone long enough not to be named among the brokers any more. Time in which the process is frozen does not
    count, so looks are counted and not seconds.
    """
    last, looks = None, 0
    while looks < STUCK_LOOKS:
        time.sleep(CALL_SECONDS / 10)
        call = pulse.call
        looks = looks + 1 if call is not None and call == last else 0
        last = call
    diary.write("told", error="STUCK")
    os._exit(STUCK)


if __name__ == "__main__":
    main()
