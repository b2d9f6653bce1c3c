"""`python -m culver.testing.chaos.client_process`: a client of a chaos run that can be killed by itself.

The only argument is the duty as JSON. SIGTERM lets it finish what it has begun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from culver.testing.chaos.client_settings import DEBUG, client_settings
from culver.testing.chaos.copier import Copier, CopierDuty
from culver.testing.chaos.diary import Diary
from culver.testing.chaos.teller import Teller, TellerDuty


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
    client.work()
    sys.stderr.flush()
    os._exit(0)  # without librdkafka's goodbyes, which take their time


if __name__ == "__main__":
    main()
