"""Sleeping until there is something to receive.  The protocol is described in ``waiting``."""

from __future__ import annotations

from .deadlines import is_over, remaining
from .descriptors import Descriptor
from .errors import OutOfTime
from .following import PATIENT
from .primitives import TIMED_OUT
from .readers import ReaderSide
from .segment import R_SPINS, RPOS, WORD, WPOS
from .waiting import DIED, LONG, NOT, SHORT, SHORT_SLEEP, close_all, rewatched


def wait_for_data(side: ReaderSide, deadline: float | None) -> bool:
    """Sleep until there is something in the ring; False: ``deadline`` has come.

    EOFError: nobody can send any more.  TimeoutError: others kept the lock until ``deadline``.
    """
    words, lock = side.words, side.lock
    if side.has_data():  # no step: it only saves the lock
        return True
    limit = remaining(deadline)
    if side.spin_now > 0 and (limit is None or limit > 0):
        if limit is None or limit > PATIENT:
            side.follower.waits()  # here, where there is time
        if side.spin(WPOS, words[RPOS] + 1, limit):
            words[R_SPINS] = (words[R_SPINS] + 1) & WORD
            return True
    asleep, kind, slept = NOT, SHORT, False
    others: list[Descriptor] = []  # the other processes, for a long sleep
    try:
        while True:
            lock.enter(deadline)
            try:
                if asleep:
                    armed, asleep = asleep, NOT
                    side.disarm(armed)  # step: recv-disarm
                # The doorbell first: what was sent before the last sender died is there.
                limit = remaining(deadline)
                brief = limit is not None and limit <= SHORT_SLEEP
                ended = side.others_gone(brief or kind == LONG)  # step: hangup-first (late)
                if side.has_data():  # step: recv-look-after-hangup (never)
                    return True
                if ended or (limit is not None and limit <= 0):
                    side.clear()  # step: wait-clear
                    break
                side.arm(kind, slept)
                asleep = kind
            finally:
                lock.release()
                lock.leave()
            if not side.has_data():  # step: recv-look (always)
                if not slept:
                    slept = True  # first: the call may end here, and let go of it in vain
                    side.bell.hold()
                outcome = side.sleep(asleep, limit, others)
                short = outcome == TIMED_OUT and kind == SHORT
                if outcome == DIED or (short and not is_over(deadline)):
                    kind, others = LONG, rewatched(side, others)
    except OutOfTime:
        side.abandon(asleep)
        raise
    except BaseException:
        side.recover(asleep)
        raise
    finally:
        if slept:
            side.bell.let_go()
        close_all(others)
    side.pass_on(slept, ended)  # step: wait-pass-on
    if ended:
        raise EOFError
    return False
