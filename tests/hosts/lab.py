"""Hosts on one machine: network namespaces on a switch, with names, links and limits.

A lab needs root, iproute2, iptables and util-linux. Limits of memory and CPUs need
cgroups (version 1), too. The process that opens a lab becomes the host "client" until
it closes the lab. Nothing leaves the namespaces, and nothing of a closed lab remains.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.processes import until

ROOT = Path(__file__).parents[2]
NAMESPACES = Path("/run/netns")
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu", "cpuset")
PREFIX = "clustertune-lab"
NETWORK = "10.77.0"
ADDRESSES = {"scheduler": 10, "h1": 11, "h2": 12, "h3": 13, "h4": 14, "client": 20}
WORKERS = ("h1", "h2", "h3", "h4")
LINK = "1gbit"
_CLONE_NEWNET = 0x40000000
#: whether this machine can have a lab; it leaves nothing behind
_TRIAL = """set -e
ip link add br0 type bridge
ip link add veth0 type veth peer name veth1
tc qdisc add dev veth0 root tbf rate 1gbit burst 512kb latency 100ms
iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP
"""
#: a command on a host sees its limits as the whole machine, as in a container
_ON_HOST = """hostname "$1"
mount --bind "$4" /proc/sys/kernel/random/boot_id
for c in $2; do
    echo $$ > "/sys/fs/cgroup/$c/$3/cgroup.procs"
    mount --bind "/sys/fs/cgroup/$c/$3" "/sys/fs/cgroup/$c"
done
shift 4
exec "$@"
"""


def missing() -> str:
    """Return the reason why this machine cannot have a lab; empty if it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "hosts need root on Linux"
    for program in ("ip", "tc", "iptables", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"hosts need the program {program}"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", _TRIAL],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"hosts do not work here: {tried.stderr.strip()}" if tried.returncode else ""


def missing_limits() -> str:
    """Return the reason why hosts cannot have limits; empty if they can."""
    for name in CONTROLLERS:
        if not os.access(CGROUPS / name / "cgroup.procs", os.W_OK):
            return f"limits of hosts need cgroups of version 1 (no {CGROUPS / name})"
    return ""


def sh(command: str) -> str:
    """Run lines of shell, and return their output; an error fails the test."""
    done = subprocess.run(
        f"set -e\n{command}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


class Host:
    """A host of a lab; the faults are methods."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.name = lab, name
        self.address = f"{NETWORK}.{ADDRESSES[name]}"
        self.namespace = f"{lab.prefix}-{name}"
        self.folder = lab.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.boot_id = self.folder / "boot_id"
        self.boot_id.write_text(f"{self.namespace}\n")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.changed = True  # by a fault, and not repaired yet

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    # --- processes --------------------------------------------------------------------

    def start(self, *command: object) -> subprocess.Popen[bytes]:
        """Start a command on this host; its output is added to the host's log."""
        cgroups = "" if self.lab.no_limits else " ".join(CONTROLLERS)
        variables = {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "False",
        }
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(
                [
                    *("nsenter", f"--net={NAMESPACES / self.namespace}"),
                    *("unshare", "--uts", "--mount", "sh", "-c", _ON_HOST, "sh"),
                    *(f"host-{self.name}", cgroups, self.namespace, self.boot_id),
                    *map(str, command),
                ],
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(started)
        return started

    @property
    def pids(self) -> list[int]:
        """Processes on this host, without this one."""
        if not (NAMESPACES / self.namespace).exists():
            return []
        found = map(int, sh(f"ip netns pids {self.namespace}").split())
        return [pid for pid in found if pid != os.getpid()]

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End all processes at once, as a power cut does."""

        def gone() -> bool:
            self._signal(signal.SIGKILL)
            return not self.pids

        until(gone)
        while self.processes:
            self.processes.pop().wait()

    def freeze(self) -> None:
        self.changed = True
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    # --- links ------------------------------------------------------------------------

    def _change(self, commands: str) -> None:
        self.changed = True
        sh(commands)

    def pull(self) -> None:
        """Pull the cable at the switch: the host's own interface stays up."""
        self._change(f"ip -n {self.lab.switch} link set {self.name} down")

    def plug(self) -> None:
        sh(f"ip -n {self.lab.switch} link set {self.name} up")

    def switch_off(self) -> None:
        """Switch the host's interface off."""
        self._change(f"ip -n {self.namespace} link set eth0 down")

    def switch_on(self) -> None:
        sh(f"ip -n {self.namespace} link set eth0 up\n{self._route}")

    @property
    def _route(self) -> str:
        """Line that adds the route that an interface loses when it is down."""
        return f"ip -n {self.namespace} route replace default dev eth0"

    def rate(self, rate: str) -> None:
        """Limit the link in both directions, like ``50mbit``."""
        self._change(self._rate(rate))

    def _rate(self, rate: str) -> str:
        limit = f"root tbf rate {rate} burst 512kb latency 100ms"
        return (
            f"ip netns exec {self.namespace} tc qdisc replace dev eth0 {limit}\n"
            f"ip netns exec {self.lab.switch} "
            f"tc qdisc replace dev {self.name} {limit}"
        )

    def lose(self, percent: float) -> None:
        """Lose this part of the packets that arrive."""
        rule = f"-m statistic --mode random --probability {percent / 100} -j DROP"
        tables = f"ip netns exec {self.namespace} iptables"
        self._change(f"{tables} -F INPUT\n{tables} -A INPUT {rule}")

    # --- limits -----------------------------------------------------------------------

    def limit(self, *, memory: int = -1, cpus: float = -1) -> None:
        """Limit bytes and CPUs of the host's processes; -1: no limit."""
        self.changed = True
        quota = int(cpus * 100_000) if cpus > 0 else -1
        group = CGROUPS / "memory" / self.namespace
        (group / "memory.limit_in_bytes").write_text(str(memory))
        group = CGROUPS / "cpu" / self.namespace
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(quota))

    # --- all together -----------------------------------------------------------------

    def repair(self) -> None:
        """Undo all faults of links and limits."""
        if not self.changed:
            return
        self.thaw()
        if not self.lab.no_limits:
            self.limit()
        sh(f"""
            ip netns exec {self.namespace} iptables -F INPUT
            ip -n {self.namespace} addr flush dev eth0
            ip -n {self.namespace} addr add {self.address}/24 dev eth0
            ip -n {self.namespace} link set eth0 up
            {self._route}
            ip -n {self.lab.switch} link set {self.name} up
            {self._rate(LINK)}
        """)
        self.changed = False


class Lab:
    """A switch and its hosts. Open it with :func:`opened`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"{PREFIX}-{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.no_limits = missing_limits()
        self.hosts = {name: Host(self, name) for name in ADDRESSES}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def workers(self) -> list[Host]:
        return [self.hosts[name] for name in WORKERS]

    def make(self) -> None:
        """Make namespaces, links and cgroups."""
        sh(f"""
            ip netns add {self.switch}
            ip -n {self.switch} link add br0 type bridge
            ip -n {self.switch} link set br0 up
        """)
        for name, host in self.hosts.items():
            ends = f"eth0 netns {host.namespace} type veth peer name {name}"
            sh(f"""
                ip netns add {host.namespace}
                ip link add {ends} netns {self.switch}
                ip -n {host.namespace} link set lo up
                ip -n {self.switch} link set {name} master br0
            """)
            if not self.no_limits:
                for controller in CONTROLLERS:
                    (CGROUPS / controller / host.namespace).mkdir(exist_ok=True)
                for file in ("cpuset.cpus", "cpuset.mems"):
                    value = (CGROUPS / "cpuset" / file).read_text()
                    (CGROUPS / "cpuset" / host.namespace / file).write_text(value)
            host.repair()

    def remove(self) -> None:
        """End all processes, and remove what :meth:`make` has made."""
        for host in self.hosts.values():
            host.thaw()
            host.kill()
        _remove(f"{self.prefix}-")

    def traffic(self) -> dict[str, int]:
        """Bytes that each host has sent so far, as the switch counts."""
        links = json.loads(sh(f"ip -n {self.switch} -s -j link"))
        sent = {link["ifname"]: link["stats64"]["rx"]["bytes"] for link in links}
        return {name: sent[name] for name in self.hosts}

    @contextmanager
    def crossing(self) -> Iterator[dict[str, int]]:
        """Fill a dict with the bytes that each host sends within the block."""
        before, sent = self.traffic(), {}
        yield sent
        sent |= {name: n - before[name] for name, n in self.traffic().items()}


def _remove(prefix: str) -> None:
    """Remove namespaces, with their links, and cgroups with a prefix."""
    for file in list(NAMESPACES.glob(f"{prefix}*")):
        sh(f"ip netns del {file.name}")
    for controller in CONTROLLERS:
        for folder in (CGROUPS / controller).glob(f"{prefix}*"):
            until(lambda folder=folder: _rmdir(folder))


def _rmdir(folder: Path) -> bool:
    """Remove a cgroup, and end processes that are left in it."""
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    try:
        folder.rmdir()
    except OSError:  # a process that was killed is still ending
        return False
    return True


def _remove_old() -> None:
    """Remove labs whose process was killed."""
    for file in list(NAMESPACES.glob(f"{PREFIX}-*")):
        number = file.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if not Path("/proc", number).exists():
            until(lambda name=file.name: not _killed(name))
            _remove(f"{PREFIX}-{number}-{file.name.rpartition('-')[2]}")


def _killed(namespace: str) -> list[str]:
    """Kill the processes of a namespace, and return their ids."""
    pids = sh(f"ip netns pids {namespace}").split()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return pids


def _set_namespace(file: Any) -> None:
    """Move this thread, and threads that it starts, to a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


@contextmanager
def opened(folder: Path) -> Iterator[Lab]:
    """Open a lab, of which this process is the host "client"."""
    _remove_old()
    lab = Lab(folder)
    with ExitStack() as stack:
        stack.callback(lab.remove)
        lab.make()
        own = stack.enter_context(Path("/proc/thread-self/ns/net").open())
        stack.callback(_set_namespace, own)
        with (NAMESPACES / lab["client"].namespace).open() as namespace:
            _set_namespace(namespace)
        yield lab
