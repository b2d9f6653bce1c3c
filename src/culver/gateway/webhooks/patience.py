"""How long to wait for a receiver that fails: between the tries of a call, and before it is given anything new.

Between tries the pause is random between nothing and a bound that doubles ("full jitter"), so that calls that failed
together do not come back together. A receiver that asks for a pause (Retry-After) gets it, up to the longest of ours.

A receiver that fails call after call is most likely down. Giving it ever more records would only use up their tries
and fill the dead-letter topic, so once FAILING_MAX different calls have failed since the last success, new ones go out
one at a time with pauses between. It is *different* calls that count: a single record that the receiver chokes on
holds up its own key and nothing else.

No I/O; time and chance come in as arguments.
"""

from __future__ import annotations

from culver.gateway.webhooks.subscription import Retry

# So many different calls failing without a success between them, and the receiver counts as down.
FAILING_MAX = 4
# Beyond this many doublings every bound is at its longest anyway; the exponent stays a small number.
_DOUBLINGS_MAX = 40


def pause_ms(retry: Retry, failures: int, chance: float) -> float:
    """The pause after so many failures in a row; `chance` is random from 0 up to 1."""
    assert failures >= 1
    bound_ms = min(float(retry.max_ms), retry.first_ms * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
    return chance * bound_ms


class Patience:
    """What one receiver can be given at the moment, going by how its last calls went."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        # Calls that failed since the last success: the first few, no more are needed to tell.
        self._failing: set[object] = set()
        self._trials_failed = 0
        self._new_after_ms = 0.0
        # The receiver asked to be left alone until then.
        self.silent_until_ms = 0.0

    @property
    def down(self) -> bool:
        """Does the receiver look as if it failed whatever it is given?"""
        return len(self._failing) >= FAILING_MAX

    def new_after_ms(self, now_ms: float, new_in_flight: int) -> float | None:
        """The earliest moment for a new call, `now_ms` or later; None: not before one that is out has ended."""
        if not self.down:
            return max(now_ms, self.silent_until_ms)
        return max(now_ms, self.silent_until_ms, self._new_after_ms) if new_in_flight == 0 else None

    def succeeded(self) -> None:
        self._failing.clear()
        self._trials_failed = 0

    def failed(
        self, call: object, tries: int, now_ms: float, chance: float, retry_after_ms: float | None
    ) -> float:
        """A call has failed for the `tries`th time. Returns when it may be tried again."""
        again_ms = now_ms + pause_ms(self._retry, tries, chance)
        if retry_after_ms is not None:
            asked_ms = now_ms + min(max(retry_after_ms, 0.0), float(self._retry.max_ms))
            self.silent_until_ms = max(self.silent_until_ms, asked_ms)
            again_ms = max(again_ms, asked_ms)
        if not self.down:
            self._failing.add(call)
        if self.down and tries == 1:
            self._trials_failed += 1
            self._new_after_ms = now_ms + pause_ms(self._retry, self._trials_failed, chance)
        return again_ms
