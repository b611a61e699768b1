"""Which of CPython's tests are run, and which are not, with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from .runner import select

# Everything that makes a pipe, in the test's own process or in one that it starts. Left out is what
# never sees one: locks and conditions, shared memory and ctypes, Listener and Client (they connect
# by sockets and are not replaced), the threads behind the same names (multiprocessing.dummy), and
# tests that hand a program to an interpreter of its own, in which nothing is installed.
GROUPS: dict[str, list[str]] = {
    "connections": [
        "WithProcessesTestConnection.*",
        "WithProcessesTestPicklingConnections.*",
        "WithProcessesTestPoll.*",
        "TestWait.*",
    ],
    "queues": [
        "WithProcessesTestQueue.*",
        "WithManagerTestQueue.*",
        "TestSimpleQueue.*",
        "TestStdinBadfiledescriptor.*",
    ],
    "pools": [
        "WithProcessesTestPool.*",
        "WithProcessesTestPoolWorkerErrors.*",
        "WithProcessesTestPoolWorkerLifetime.*",
        "WithManagerTestPool.*",
        "TestInitializers.test_pool_initializer",
        "TestPoolNotLeakOnFailure.*",
    ],
    "processes": [
        "WithProcessesTestProcess.*",
        "WithProcessesTestSubclassingProcess.*",
        "WithProcessesTestBarrier.test_thousand",
        "WithProcessesTestFinalize.test_finalize",
        "WithProcessesTestLogging.*",
        "WithProcessesTestSharedMemory.test_shared_memory_SharedMemoryManager_*",
        "TestCloseFds.*",
        "TestForkAwareThreadLock.*",
        "TestIgnoreEINTR.*",
        "TestResourceTracker.test_resource_tracker_reused",
        "TestStartMethod.*",
        "TestTimeouts.*",
    ],
    "managers": [
        "WithManagerTestContainers.*",
        "WithManagerTestMyManager.*",
        "WithManagerTestRemoteManager.*",
        "With*TestManagerRestart.*",
        "TestInitializers.test_manager_initializer",
        "TestSyncManagerTypes.*",
    ],
    "executors": [
        "ProcessPool*",
        "FailingInitializerResourcesTest.test_{method}",
    ],
}

# Not in every version that we run on, or not for every start method.
RARE = {"FailingInitializerResourcesTest.test_{method}"}

# Tests that spend seconds in sleep().
SLEEPERS = [
    "TestWait.test_wait_timeout",
    "TestWait.test_wait_integer",
    "WithProcessesTestPoll.test_boundaries",
]

_SENDS_BY_SOCKET = (
    "reduction.send_handle() and recv_handle(), which the manual does not mention, use the "
    "connection's fileno() as a socket of the AF_UNIX family and send a descriptor through it. "
    "A connection in shared memory has a fileno() for watching only. Descriptors, sockets and "
    "files travel as everywhere else: reduction.DupFd, or the object itself through send()."
)
EXCEPTIONS: dict[str, str] = {
    "WithProcessesTestConnection.test_fd_transfer": _SENDS_BY_SOCKET,
    "WithProcessesTestConnection.test_large_fd_transfer": _SENDS_BY_SOCKET,
    "WithProcessesTestConnection.test_missing_fd_transfer": (
        "It writes a byte to the connection's fileno() with os.write(), past the connection. "
        "A fileno() for watching only cannot be written to."
    ),
}


def chosen(available: Iterable[str], method: str, groups: Iterable[str] = GROUPS) -> list[str]:
    """The tests of these groups without the exceptions; none, where the package lacks a group."""
    patterns = [pattern.format(method=method) for group in groups for pattern in GROUPS[group]]
    return [name for name in select(available, patterns) if name not in EXCEPTIONS]
