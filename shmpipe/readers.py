"""The readers' side of a ring: sleeping for data, waking writers as the wake policy says.

The protocol is described in ``waiting``, the tokens in ``doorbell``.
"""

from __future__ import annotations

from math import inf

from . import identity, primitives
from .descriptors import Descriptor
from .doorbell import Doorbell
from .following import Follower
from .locking import STANDSTILL, Locks, SideLock, standstill
from .policies import EDGE_HALF, WRITE_SIZE, fires
from .primitives import POLLIN
from .ring import Ring
from .segment import (
    LIMIT,
    PAGE_SHIFT,
    PLUG,
    POLICY,
    R_SLEEPS,
    RD_ARM,
    RD_LEFT,
    RD_LONG,
    RD_RUNG,
    RD_SLEEPERS,
    RD_STALE,
    RD_WATCH,
    RPOS,
    TELLS,
    UNPLUG,
    W_WAKES,
    W_WITHHELD,
    WORD,
    WPOS,
    WR_ARM,
    WR_LEFT,
    WR_LONG,
    WR_RUNG,
    WR_SLEEPERS,
    WR_TURN_BY,
    WR_WANT,
    WR_WATCH,
    WRITE_PAGES,
)
from .waiting import SHORT, TELLING, Side

NOT_AGAIN = 2.0  # seconds for which a standstill of the writers is not waited for once more


class ReaderSide(Side):
    """The readers' side: sleeps for data, wakes writers."""

    def __init__(self, ring: Ring, locks: Locks, bell: Doorbell, spin: float | None) -> None:
        super().__init__(ring, locks, bell, spin)
        self.lock = locks.reader
        self.left_word = WR_LEFT
        self.follower = Follower(ring)
        self.in_vain = -inf  # when the writers' lock was waited for in vain
        self.lock.sides.add(id(self), self)

    # --- under the lock --------------------------------------------------------------------------

    def arm(self, kind: int, again: bool) -> None:
        """Count this call among the sleepers and take a ticket; the ring was seen empty.

        ``again``: it has been woken for nothing, and goes on with the same sleep.
        """
        words = self.words
        if kind == SHORT:
            if not words[RD_SLEEPERS]:  # step: reader-tokens (always)
                # Tokens that nobody took; were others counted, one may be on its way to them.
                self.drain(self.read_wait)
            words[RD_SLEEPERS] = (words[RD_SLEEPERS] + 1) & WORD  # step: reader-counted
            words[R_SLEEPS] = (words[R_SLEEPS] + (0 if again else 1)) & WORD
        else:
            words[RD_LONG] = (words[RD_LONG] + 1) & WORD  # step: reader-long
        self.clear()  # step: reader-count-first (early)

    def disarm(self, kind: int) -> None:
        # An exception in between leaves a count too high, which only costs wakes; never too low.
        word = RD_SLEEPERS if kind == SHORT else RD_LONG
        count = self.words[word] if kind else 0
        if count:
            self.words[word] = count - 1

    def clear(self) -> None:
        """The ring was seen empty: take a ticket, and show the watchers that there is nothing."""
        words = self.words
        if not self._is_told():
            self._await_teller()  # step: await-teller
        plug = words[PLUG]
        ticket = words[RD_ARM] = (words[RD_ARM] + 1) & WORD
        if words[RD_WATCH] or words[RD_LONG] or plug != words[UNPLUG]:
            # The ticket before the second look; pairs with the unlock in a writer.
            primitives.fence()  # step: clear-fence
            words[RD_STALE] = self.has_data()  # step: stale-noted
            if not words[RD_STALE]:  # step: clear-look (always)
                self.bell.eat(plug, ticket)  # step: clear-eat
                self.bell.hush()  # step: clear-hush
                words[UNPLUG] = plug

    def _is_told(self) -> bool:
        """Whether no writer is still to ring for what this side has taken (doorbell's rule 5)."""
        words = self.words
        if not words[RD_WATCH]:
            return True  # there are no promises to keep
        # What was taken before who is telling of it; pairs with the fence in tell().
        primitives.fence()  # step: taken-fence
        return not words[TELLS] & 1

    def _await_teller(self) -> None:
        """Wait for the writer who is ringing, maybe for what this side has taken already.

        In vain if that one stands still, or if this is a signal's handler that has interrupted it:
        then what it rings for may be gone.  Later calls do not wait for the same one again.
        """
        words = self.words
        tells = words[TELLS]
        if not tells & 1 or primitives.spin(words, TELLS, tells + 1, TELLING):
            return
        lock = self._keep_writers_out()
        words[TELLS] = (words[TELLS] + 1) & ~1 & WORD  # a dead one's, or one's that stands still
        if lock is not None:
            lock.release()
            lock.leave()

    def _keep_writers_out(self) -> SideLock | None:
        """Beside this side's lock take that of the writers, in the order of ``enter_both()``.

        None: somebody stands still with it (which is found out once in a while, not several times
        in a call), or this is a signal's handler that has interrupted a call with it.
        """
        lock: SideLock = self.locks.writer
        now = primitives.coarse_time()
        if lock.local._is_owned() or now < self.in_vain + NOT_AGAIN:
            return None
        if lock.enter_soon(STANDSTILL):
            return lock
        self.in_vain = now
        return None

    def settle(self, drained: bool, slept: bool) -> None:
        """After something was taken: what watchers and other sleepers have to be shown."""
        words = self.words
        if not drained:
            return
        if words[RD_WATCH] or words[RD_LONG]:
            told = self._is_told()
            rung = words[RD_ARM] == words[RD_RUNG] or words[RD_STALE] or self.bell.rung_self()
            if rung or not told:  # otherwise there are no tokens, and none will come
                self.clear()  # step: settle-clear
        elif slept and words[RD_SLEEPERS]:
            # step: reader-rearm
            words[RD_ARM] = (words[RD_ARM] + 1) & WORD  # for those who still sleep

    # --- without the lock ------------------------------------------------------------------------

    def abandon(self, kind: int) -> None:
        """A call leaves by an exception: count it out, hand on a wake-up it may have eaten."""
        lock = self.lock
        if kind and lock.enter_soon():  # if not, a count stays too high, which costs only wakes
            try:
                self.disarm(kind)
            finally:
                lock.release()
                lock.leave()
            self.pass_on(True, False)

    def recover(self, kind: int) -> None:
        """A call ends by an exception, which may have come anywhere: leave nothing behind.

        It may have come between publishing and waking, so the writers are woken in any case.
        """
        self.lock.left_behind()
        self.abandon(kind)
        self.resized()

    def watch_fd(self) -> int:
        """The descriptor that is readable when there is data or no writer."""
        words, bell, lock = self.words, self.bell, self.lock
        lock.enter(standstill())
        try:
            fd = bell.watch_fd()
            words[RD_WATCH] = 1  # step: watch-announce
            if not self.has_data():  # step: watch-level (never)
                self.clear()
        finally:
            lock.release()
            lock.leave()
        # step: watch-look (never)
        if self.has_data():  # from before the ticket: nobody will ring for it
            bell.ring_self()
        return fd

    def sleep(self, kind: int, seconds: float | None, others: list[Descriptor]) -> int:
        """Sleep, armed as ``kind``: WOKEN, TIMED_OUT, INTERRUPTED or DIED.

        The error of a closed end: a signal's handler has closed this one.
        """
        if kind == SHORT:
            outcome = self.sleep_short(self.read_wait, seconds)
        else:
            outcome = self.sleep_long(POLLIN, seconds, others)
        return self.still_open(outcome)

    def pass_on(self, slept: bool, ended: bool) -> None:
        """Whoever was woken wakes the next one, if there is something for it."""
        # step: reader-pass-on (never)
        if slept and self.words[RD_SLEEPERS] and (ended or self.has_data()):
            self.read_wait.release()

    def wake_writers(self, freed: int) -> None:
        """``freed`` slots were given back, and the lock since: tell writers as the policy says."""
        words = self.words
        ticket = words[WR_ARM]
        want = words[WR_WANT]  # behind the ticket, before which its sender has stored it
        if not freed and not want:
            return
        if ticket == words[WR_RUNG]:
            # Watchers keep the ticket of their plug.  A read before this one may have answered it
            # when the ring was full again, so that the plug had to stay.
            if words[PLUG] != words[UNPLUG]:  # step: answered-plug (never)
                self.unplug(False)
            return
        # The writers' position is loaded only now: a writer that filled the ring and went to sleep
        # after this read had looked must count as one that sleeps on a full ring.
        after = self.ring.used_now()
        policy, pages = words[POLICY], words[LIMIT]
        fired = fires(policy, pages, min(words[WRITE_PAGES], pages), after + freed, after)
        # A sender may wait for more than the write size; or for less than a slot, which policies
        # do not know.
        if fired and want and (policy == WRITE_SIZE or not freed):
            fired = words[WPOS] - words[RPOS] + want <= pages << PAGE_SHIFT
        if fired:
            words[WR_RUNG] = ticket  # step: writer-rung (late 2)
            words[W_WAKES] = (words[W_WAKES] + 1) & WORD
            # Before looking who waits where: a sleeper on its way from the semaphore to the
            # doorbell looks at RUNG after it has plugged.
            primitives.fence()  # step: wake-writers-fence
            if words[WR_SLEEPERS]:
                self.write_wait.release()  # step: wake-writers
            self.unplug(True)  # step: wake-unplug
        elif freed:
            words[W_WITHHELD] = (words[W_WITHHELD] + 1) & WORD
            # Where the mark for sleepers is not the one for watchers.
            if policy == EDGE_HALF or self._wanted_by_the_dead():
                self.unplug(False)  # step: other-mark

    def _wanted_by_the_dead(self) -> bool:
        """Whether nobody is left who waits for more space than the write size."""
        words = self.words
        if words[WR_WANT] <= words[WRITE_PAGES] << PAGE_SHIFT:
            return False
        sender = words[WR_TURN_BY]
        return not (sender and identity.is_alive(sender))

    def unplug(self, fired: bool) -> None:
        """Make the writers' socket writable again, if there is space enough.

        While writers sleep on that socket, and nobody watches it, only an event that wakes them
        (``fired``) may do it.
        """
        words, lock = self.words, self.lock
        held_back = words[WR_LONG] and not words[WR_WATCH]
        if words[PLUG] == words[UNPLUG] or (held_back and not fired):
            return
        if not lock.enter_soon(STANDSTILL):
            return  # what this call has done is done; the next one on this side sees to it
        try:
            plug = words[PLUG]
            if held_back:
                self._unplug(plug)
                return
            # Somebody who fills the ring meanwhile would rely on the plug that is in already.
            writers: SideLock | None = None
            try:
                writers = self._keep_writers_out()  # step: unplug-lock
                if self.is_ready():  # step: unplug-level (always)
                    self._unplug(plug)
            finally:
                if writers is not None:
                    writers.release()
                    writers.leave()
        finally:
            lock.release()
            lock.leave()

    def _unplug(self, plug: int) -> None:
        """Take out plugs up to the one seen before the space was (rule 3); under the lock."""
        words = self.words
        # no step: it only spares the next reader a stale token
        if not self.has_data():
            self.clear()
        if words[UNPLUG] != plug:
            # While there is data, one token is left, which is to be eaten with the last byte.
            words[RD_STALE] = 1  # step: plug-left
            self.bell.eat(plug)  # step: unplug-eat
            words[UNPLUG] = plug

    def arrived(self) -> None:
        """Writers that sleep long look again; they will find out whether there is space."""
        words = self.words
        plug = words[PLUG]
        if words[WR_LONG] and plug != words[UNPLUG]:
            words[RD_STALE] = 1  # as in _unplug()  # no step: the data that is left is shown anyway
            self.bell.eat(plug)  # step: arrived-eat
            words[UNPLUG] = plug

    def resized(self) -> None:
        """Slots may have become free other than by a read: wake the writers for them."""
        words = self.words
        words[WR_RUNG] = words[WR_ARM]  # step: resized-reader-rung
        primitives.fence()  # as in wake_writers()  # step: resized-reader-fence
        if words[WR_SLEEPERS]:
            self.write_wait.release()  # step: resized-reader-wake
        self.unplug(True)  # step: resized-unplug

    def repair(self) -> None:
        """A reader died after it may have freed something: wake the writers for it."""
        self.resized()

    def level_changed(self) -> None:
        """The mark for POLLOUT has moved; sleepers are not woken by that."""
        self.unplug(False)

    def leave(self) -> None:
        """This process closes its end: a sleeping writer will look whether it was the last."""
        self._let_go()  # step: reader-close
        self.words[RD_LEFT] = 1  # step: reader-left
        if self.words[WR_SLEEPERS]:
            self.post_in_leaving(self.write_wait)  # step: reader-leave-wake
