"""Which of CPython's tests are run, and which are not, with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from .runner import select

# What makes a pipe, in the test's own process or in one that it starts. Left out is what sees none:
# locks and conditions, shared memory and ctypes, Listener and Client (they connect by sockets and
# are not replaced), tests that run a file in an interpreter of its own, in which nothing is
# installed; and what sees one only as these here do: the same tests of locks and the like through a
# manager (a pipe tells its address), and of queues under multiprocessing.dummy's names.
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
        # Not test_terminate: before Python 3.13 it may wait for a thread that sleeps for minutes.
        "WithThreadsTestPool.test_[!t]*",
        "TestInitializers.test_pool_initializer",
        "TestPoolNotLeakOnFailure.*",
    ],
    "processes": [
        "WithProcessesTestProcess.*",
        "WithProcessesTestSubclassingProcess.*",
        "WithProcessesTestBarrier.test_thousand",
        "WithProcessesTestBarrier.test_wait_return",
        "WithProcessesTestFinalize.test_finalize",
        "WithProcessesTestLogging.*",
        "WithProcessesTestSharedMemory.test_shared_memory_SharedMemoryManager_*",
        "WithProcessesTestSharedMemory.test_shared_memory_SharedMemoryServer_*",
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
        "TestManagerExceptions.*",
        "TestSyncManagerTypes.*",
    ],
    "executors": [
        "ProcessPool*",
        "FailingInitializerResourcesTest.test_{method}",
        "ThreadPoolExecutorTest.test_hang_global_shutdown_lock",  # process pools
    ],
}

# Not in every version that we run on, or not for every start method.
RARE = {"FailingInitializerResourcesTest.test_{method}", "TestManagerExceptions.*"}

# Tests that spend seconds in sleep().
SLEEPERS = [
    "TestWait.test_wait_timeout",
    "TestWait.test_wait_integer",
    "WithProcessesTestPoll.test_boundaries",
]

_SENDS_BY_SOCKET = (
    "reduction.send_handle(), which the manual does not mention, takes fileno() for a UNIX socket; "
    "ours is for watching only. (reduction.DupFd and objects that are sent carry descriptors.)"
)
EXCEPTIONS: dict[str, str] = {
    "WithProcessesTestConnection.test_fd_transfer": _SENDS_BY_SOCKET,
    "WithProcessesTestConnection.test_large_fd_transfer": _SENDS_BY_SOCKET,
    "WithProcessesTestConnection.test_missing_fd_transfer": (
        "It writes to fileno() with os.write(), past the connection; ours is for watching only."
    ),
}


def chosen(available: Iterable[str], method: str, groups: Iterable[str] = GROUPS) -> list[str]:
    """The tests of these groups without the exceptions; none, where the package lacks a group."""
    patterns = [pattern.format(method=method) for group in groups for pattern in GROUPS[group]]
    return [name for name in select(available, patterns) if name not in EXCEPTIONS]
