"""The writers' side of a ring: sleeping for space, waking readers.

The protocol is described in ``waiting``, the tokens in ``doorbell``.
"""

from __future__ import annotations

from . import primitives
from .descriptors import Descriptor
from .doorbell import Doorbell
from .locking import STANDSTILL, Locks, standstill
from .policies import fires
from .primitives import POLLOUT
from .ring import Ring
from .segment import (
    LIMIT,
    PLUG,
    POLICY,
    R_WAKES,
    RD_ARM,
    RD_LEFT,
    RD_LONG,
    RD_RUNG,
    RD_SLEEPERS,
    RD_WATCH,
    TELLS,
    UNPLUG,
    W_SLEEPS,
    WORD,
    WR_ARM,
    WR_LEFT,
    WR_LONG,
    WR_RUNG,
    WR_SLEEPERS,
    WR_WATCH,
    WRITE_PAGES,
)
from .waiting import SHORT, Side


class WriterSide(Side):
    """The writers' side: sleeps for space, wakes readers."""

    def __init__(self, ring: Ring, locks: Locks, bell: Doorbell, spin: float | None) -> None:
        super().__init__(ring, locks, bell, spin)
        self.lock = locks.writer
        self.lock.sides.add(id(self), self)
        self.left_word = RD_LEFT

    def has_space(self) -> bool:
        return self.ring.used_now() < self.ring.limit()

    def answered(self, ticket: int) -> bool:
        """Whether somebody who has taken ``ticket`` was rung for.

        To be asked once more before sleeping, whatever the ring shows: whoever rang without cause,
        as is done when somebody has died, may have looked for the sleeper before it could be found.
        With the ticket answered nobody would ring for it again.  (Tickets that nobody has taken
        yet cannot have been answered: that would keep this side from sleeping ever after.)
        """
        words = self.words
        rung = words[WR_RUNG]
        return (rung - ticket) & WORD <= (words[WR_ARM] - ticket) & WORD

    def overdue(self) -> bool:
        """Whether whoever emptied the full ring as far as this was to wake its sleepers.

        To be asked where somebody has ended, who may have died before he did.
        """
        words, used = self.words, self.ring.used_now()
        policy, pages = words[POLICY], words[LIMIT]
        threshold = min(words[WRITE_PAGES], pages)
        return used < pages and fires(policy, pages, threshold, pages, used)

    # --- under the lock --------------------------------------------------------------------------

    def arm(self, kind: int, again: bool) -> int:
        """Count this call among the sleepers; returns its ticket.  The ring was seen full.

        ``again``: it has been woken for nothing, and goes on with the same sleep.
        """
        words = self.words
        if kind == SHORT:
            if not words[WR_SLEEPERS]:  # step: writer-tokens (always)
                # Tokens that nobody took; were others counted, one may be on its way to them.
                self.drain(self.write_wait)
            words[WR_SLEEPERS] = (words[WR_SLEEPERS] + 1) & WORD  # step: writer-counted
            words[W_SLEEPS] = (words[W_SLEEPS] + (0 if again else 1)) & WORD
            words[WR_ARM] = (words[WR_ARM] + 1) & WORD  # step: writer-ticket
        else:
            words[WR_LONG] = (words[WR_LONG] + 1) & WORD  # step: writer-long
            self.plug()  # step: writer-plug
        return words[WR_ARM]

    def disarm(self, kind: int) -> None:
        # An exception in between leaves a count too high, which only costs wakes; never too low.
        word = WR_SLEEPERS if kind == SHORT else WR_LONG
        count = self.words[word] if kind else 0
        if count:
            self.words[word] = count - 1

    def plug(self) -> None:
        """Show watchers and long sleepers that there is no space (doorbell's rule 2)."""
        words, bell = self.words, self.bell
        bell.narrow()
        # A new number only with new tokens: numbers are compared modulo 128.
        if words[PLUG] == words[UNPLUG] or bell.is_open():
            words[PLUG] = number = (words[PLUG] + 1) & WORD
            words[WR_ARM] = (words[WR_ARM] + 1) & WORD
            bell.plug(number)  # step: plug-tokens
            # Once more behind them: a reader may have eaten the first of the tokens, and taken the
            # number for done, while others were still to come.
            words[PLUG] = (number + 1) & WORD  # step: plug-again
        else:
            words[WR_ARM] = (words[WR_ARM] + 1) & WORD
        # The announcement before the second look, the caller's; pairs with the unlock in a reader.
        # no step: the system calls above are barriers too
        primitives.fence()

    def show_level(self) -> None:
        """Bring the socket's writability to what the policy says, if anybody may be watching."""
        words = self.words
        # no step: it only saves plugging
        if words[WR_WATCH] and not self.is_ready():
            # A plug shows at the readers' end, too: as in tell(), none may come when all is taken.
            words[TELLS] |= 1  # step: plugging-first
            primitives.fence()  # step: plugging-fence
            if not self.is_ready():  # step: plugging-look (always)
                self.plug()
            words[TELLS] = ((words[TELLS] | 1) + 1) & WORD  # step: plugged-last (early)
        if words[PLUG] != words[UNPLUG] and self.is_ready():  # step: level-look (never)
            self.bell.open()

    def settle(self, slept: bool) -> None:
        """After a write, done or not: what watchers and other sleepers have to be shown."""
        words = self.words
        if words[WR_WATCH] or words[PLUG] != words[UNPLUG]:
            self.show_level()  # step: settle-level
        if slept and words[WR_SLEEPERS] and not self.has_space():  # step: writer-rearm (never)
            words[WR_ARM] = (words[WR_ARM] + 1) & WORD  # for those who still sleep

    def tell(self, anyway: bool = False) -> None:
        """Bytes were published: wake whoever waits for them (doorbell's rule 5).

        ``anyway``: a wake may have been missed; and long sleepers look again, data or not.
        """
        words = self.words
        words[TELLS] |= 1  # step: telling-first
        # Before looking whether the bytes are still there: pairs with the fence in _is_told().
        primitives.fence()  # step: tell-fence
        ticket = words[RD_ARM]
        if anyway or ticket != words[RD_RUNG]:
            there = self.has_data()
            if there:
                words[RD_RUNG] = ticket  # step: teller-rung
                if words[RD_SLEEPERS]:
                    words[R_WAKES] = (words[R_WAKES] + 1) & WORD
                    self.read_wait.release()  # step: tell-readers
            if (there and words[RD_WATCH]) or (words[RD_LONG] and (there or anyway)):
                words[R_WAKES] = (words[R_WAKES] + 1) & WORD
                self.bell.ring(ticket)  # step: tell-watchers
        # (A reader that has waited for long enough has made it even already.)
        words[TELLS] = ((words[TELLS] | 1) + 1) & WORD  # step: told-last (early 2)

    # --- without the lock ------------------------------------------------------------------------

    def abandon(self, kind: int) -> None:
        """A call leaves by an exception: count it out, hand on a wake-up it may have eaten."""
        lock = self.lock
        if kind and lock.enter_soon():  # if not, a count stays too high, which costs only wakes
            try:
                self.disarm(kind)
                self.settle(True)  # step: writer-abandon-settle
            finally:
                lock.release()
                lock.leave()
            self.pass_on(True, False)

    def recover(self, kind: int) -> None:
        """A call ends by an exception, which may have come anywhere: leave nothing behind.

        It may have come between publishing and waking, so the readers are woken in any case.
        """
        self.lock.left_behind()
        self.abandon(kind)
        self.repair()

    def watch_fd(self) -> int:
        """The descriptor that is writable when there is space enough or no reader."""
        words, lock = self.words, self.lock
        lock.enter(standstill())
        try:
            words[WR_WATCH] = 1  # step: watch-space-announce
            self.show_level()  # step: watch-space-level
        finally:
            lock.release()
            lock.leave()
        return self.bell.writer_fd()

    def sleep(self, kind: int, seconds: float | None, others: list[Descriptor]) -> int:
        """Sleep, armed as ``kind``: WOKEN, TIMED_OUT, INTERRUPTED or DIED.

        The error of a closed end: a signal's handler has closed this one.
        """
        if kind == SHORT:
            outcome = self.sleep_short(self.write_wait, seconds)
        else:
            outcome = self.sleep_long(POLLOUT, seconds, others)
        return self.still_open(outcome)

    def pass_on(self, slept: bool, ended: bool) -> None:
        """Whoever was woken wakes the next one, if there is something for it."""
        # step: writer-pass-on (never)
        if slept and self.words[WR_SLEEPERS] and (ended or self.has_space()):
            self.write_wait.release()  # step: resized-wake

    def wake_readers(self) -> None:
        """Bytes were published, and the lock given back since: tell whoever waits for them."""
        words = self.words
        ticket = words[RD_ARM]
        # no step: it only saves wakes (whoever has taken all of it since sees to the others)
        if ticket == words[RD_RUNG] or not self.has_data():
            return
        if words[RD_WATCH] or words[RD_LONG]:
            self._ring(False)
            return
        words[RD_RUNG] = ticket  # no step: it only saves wakes
        if words[RD_SLEEPERS]:
            words[R_WAKES] = (words[R_WAKES] + 1) & WORD
            self.read_wait.release()  # step: wake-readers

    def _ring(self, anyway: bool) -> None:
        """``tell()``, for who does not have the lock."""
        lock = self.lock
        if not lock.enter_soon(STANDSTILL):
            # Somebody stands still with it.  Better a readiness too many than one that is missing.
            words = self.words
            # (Its steps are those of tell(); only who is stopped just then brings others here.)
            ticket = words[RD_RUNG] = words[RD_ARM]  # no crash: as in tell()
            if words[RD_SLEEPERS]:
                self.read_wait.release()  # no crash: as in tell()
            self.bell.ring(ticket)
            return
        try:
            self.tell(anyway)  # step: wake-watchers
        finally:
            lock.release()
            lock.leave()

    def arrived(self) -> None:
        """Readers that sleep long look again."""
        if self.words[RD_LONG]:
            self.tell(True)  # step: arrived-ring

    def repair(self) -> None:
        """A writer died, or was thrown out, after it may have published something: ring for it."""
        words = self.words
        if words[RD_WATCH] or words[RD_LONG]:
            self._ring(True)
        else:
            words[RD_RUNG] = words[RD_ARM]
            if words[RD_SLEEPERS]:
                self.read_wait.release()

    def resized(self) -> None:
        """Slots may have become free other than by a read: wake the writers for them."""
        words = self.words
        words[WR_RUNG] = words[WR_ARM]  # step: resized-rung
        # Before looking who waits where: as in ReaderSide.wake_writers().
        primitives.fence()  # step: resized-writer-fence
        if words[WR_SLEEPERS]:
            self.write_wait.release()  # step: resized-writer-wake
        if words[WR_LONG]:
            self.bell.open()  # step: resized-open
        self.level_changed()  # step: resized-level

    def level_changed(self) -> None:
        """The mark for POLLOUT has moved; sleepers are not woken by that."""
        words, lock = self.words, self.lock
        if not lock.enter_soon(STANDSTILL):
            return  # the next call on this side shows it
        try:
            if words[WR_WATCH] or (words[PLUG] != words[UNPLUG] and not words[WR_LONG]):
                self.show_level()
        finally:
            lock.release()
            lock.leave()

    def leave(self) -> None:
        """This process closes its end: a sleeping reader will look whether it was the last."""
        self._let_go()  # step: writer-close
        self.words[WR_LEFT] = 1  # step: writer-left
        if self.words[RD_SLEEPERS]:
            self.post_in_leaving(self.read_wait)  # step: writer-leave-wake
