"""Scripts about incremental fetch sessions: made, changed, forgotten, out of step."""

from __future__ import annotations

from culver.protocol.messages.fetch import FetchRequest, ForgottenTopic
from differential import batches
from differential.play import Play, script
from differential.script_fetch import fetch_request, part
from differential.script_metadata import SOME_ID


def forgetting(request: FetchRequest, which: str | bytes, partitions: list[int]) -> FetchRequest:
    forgotten = ForgottenTopic(partitions=partitions)
    if isinstance(which, str):
        forgotten.topic = which
    else:
        forgotten.topic_id = which
    request.forgotten_topics_data = [forgotten]
    return request


@script
def fetch_sessions(play: Play) -> None:
    play.topic("sessions", 3)
    play.produce("sessions", batches.batch())
    for version in (7, 11, 12):
        everything = [("sessions", [part(0), part(1), part(2)])]
        made = play.step(f"made, v{version}", fetch_request(everything, session=(0, 0)), version)
        session = made.session_id
        play.step(f"nothing new since epoch 0, v{version}", fetch_request([], session=(session, 1)), version)
        moved = fetch_request([("sessions", [part(0, offset=1)])], session=(session, 2))
        play.step(f"moved on, v{version}", moved, version)
        play.step(f"nothing changed, v{version}", fetch_request([], session=(session, 3)), version)
        play.produce("sessions", batches.batch(2), 1)
        play.step(f"one partition grew, v{version}", fetch_request([], session=(session, 4)), version)
        play.step(f"it still is unread, v{version}", fetch_request([], session=(session, 5)), version)
        gone = forgetting(fetch_request([], session=(session, 6)), "sessions", [1])
        play.step(f"one forgotten, v{version}", gone, version)
        added = fetch_request([("sessions", [part(1)])], session=(session, 7))
        play.step(f"and taken up again, v{version}", added, version)
        play.step(f"an old epoch, v{version}", fetch_request([], session=(session, 3)), version)
        play.step(f"a future epoch, v{version}", fetch_request([], session=(session, 99)), version)
        play.step(f"the right epoch after that, v{version}", fetch_request([], session=(session, 8)), version)
        play.step(f"closed, v{version}", fetch_request(everything, session=(session, -1)), version)
        play.step(f"used after its end, v{version}", fetch_request([], session=(session, 9)), version)


@script
def fetch_sessions_that_are_not(play: Play) -> None:
    play.topic("no.sessions", 1)
    play.produce("no.sessions", batches.batch())
    one = [("no.sessions", [part()])]
    play.step("an unknown session", fetch_request(one, session=(12345, 1)), 11)
    play.step("an unknown session at epoch 0", fetch_request(one, session=(12345, 0)), 11)
    play.step("an unknown session closed", fetch_request(one, session=(12345, -1)), 11)
    play.step("session 0 at epoch 5", fetch_request(one, session=(0, 5)), 11)
    play.step("a negative session", fetch_request(one, session=(-7, 3)), 11)
    play.step("epoch -2", fetch_request(one, session=(0, -2)), 11)
    play.step("no session wanted", fetch_request(one, session=(0, -1)), 11)
    play.step("a session of nothing", fetch_request([], session=(0, 0)), 11)
    missing = [("no.sessions.missing", [part()])]
    made = play.step("a session of a missing topic", fetch_request(missing, session=(0, 0)), 11)
    play.step("the missing topic still is missing", fetch_request([], session=(made.session_id, 1)), 11)
    beyond = [("no.sessions", [part(offset=50)])]
    made = play.step("a session beyond the end", fetch_request(beyond, session=(0, 0)), 11)
    play.step("it still is beyond the end", fetch_request([], session=(made.session_id, 1)), 11)


@script
def fetch_sessions_with_ids(play: Play) -> None:
    topic_id = play.topic("session.ids", 2)
    play.produce("session.ids", batches.batch())
    for version in (13, 18):
        made = play.step(
            f"made, v{version}", fetch_request([(topic_id, [part(0), part(1)])], session=(0, 0)), version
        )
        session = made.session_id
        play.step(
            f"nothing new, v{version}",
            fetch_request([(topic_id, [part(0, offset=1)])], session=(session, 1)),
            version,
        )
        unknown = fetch_request([(SOME_ID, [part()])], session=(session, 2))
        play.step(f"an unknown id added, v{version}", unknown, version)
        play.step(f"after that, v{version}", fetch_request([], session=(session, 3)), version)
        gone = forgetting(fetch_request([], session=(session, 4)), topic_id, [0, 1])
        play.step(f"all forgotten, v{version}", gone, version)
        play.step(f"an empty session, v{version}", fetch_request([], session=(session, 5)), version)
        play.step(
            f"names in a session of ids, v{version}",
            fetch_request([("session.ids", [part()])], session=(session, 6)),
            12,
        )
    made = play.step("made with names", fetch_request([("session.ids", [part()])], session=(0, 0)), 12)
    play.step(
        "ids in a session of names", fetch_request([(topic_id, [part()])], session=(made.session_id, 1)), 13
    )
