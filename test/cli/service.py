#!/usr/bin/env python3
"""A node as a service manager has it, on a NOTIFY_SOCKET of this test's own: it says when it is ready, that it is alive as
long as its actors answer and not longer, and when it ends. One of the three nodes listens nowhere, as behind NAT.

service.py ORDERMOE DATA UNITS...
"""
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ORDERMOE, DATA, *UNITS = sys.argv[1:]
WATCHDOG_S = 0.4
LONG_S = 60  # More than anything takes.
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"FAILED: {what}", flush=True)


def eventually(holds, limit_s=LONG_S):
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def ordermoe(*words):
    return subprocess.run([ORDERMOE, *words], capture_output=True, text=True, timeout=LONG_S, env=ENVIRONMENT)


ENVIRONMENT = dict(os.environ, ORDERMOE_DATA=DATA, OPENBLAS_NUM_THREADS="1")
for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
    ENVIRONMENT.pop(name, None)


class Service:
    """A process with a notification socket, which hears (when, what)."""

    def __init__(self, name, address, config):
        self.heard = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        threading.Thread(target=self.listen, daemon=True).start()
        environment = dict(ENVIRONMENT, NOTIFY_SOCKET=address, WATCHDOG_USEC=str(int(WATCHDOG_S * 1e6)))
        self.log = open(f"{name}.log", "w+")
        self.process = subprocess.Popen([ORDERMOE, "node", "--config", config], env=environment, stdout=self.log,
                                        stderr=self.log)

    def listen(self):
        while True:
            text = self.socket.recv(4096).decode()
            self.heard += [(time.monotonic(), line) for line in text.splitlines()]

    def said(self):
        return [what for _, what in list(self.heard)]

    def n_alive(self):
        return self.said().count("WATCHDOG=1")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LONG_S)


class Stopped:
    """All threads of a child but its first, held from without: the process is there, and its actors do nothing."""

    SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
    libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self, pid):
        self.pid = pid
        self.threads = [int(each) for each in os.listdir(f"/proc/{pid}/task") if int(each) != pid]

    def ptrace(self, what, thread):
        return self.libc.ptrace(what, thread, None, None) == 0

    def state(self, thread):
        with open(f"/proc/{self.pid}/task/{thread}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    def __enter__(self):
        held = [self.ptrace(self.SEIZE, each) and self.ptrace(self.INTERRUPT, each) for each in self.threads]
        self.all = bool(held) and all(held) and eventually(lambda: all(self.state(each) == "t" for each in self.threads))
        return self

    def __exit__(self, *_):
        for each in self.threads:
            self.ptrace(self.DETACH, each)


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def prepare():
    model = f"{DATA}/models/lineage"
    drawn = ordermoe("cluster", "draw", "--servers", "3", "--seed", "2", "--memory-ratio", "1.5", "--layers", "6",
                     "--experts", "8", "--out", "three.toml")
    addresses = [f"--address=s{i}=127.0.0.1:{port}" for i, port in enumerate(free_ports(2))] + ["--address=s2=-"]
    made = ordermoe("cluster", "prepare", "--model", model, "--cluster", "three.toml", "--strategy", "layer-shards",
                    "--max-positions", "400", "--dir", "edge", *addresses)
    check(drawn.returncode == 0 and made.returncode == 0, f"a cluster is prepared: {drawn.stderr}{made.stderr}")
    return addresses[0].split("=")[-1]


def a_node_that_cannot_start_is_never_ready():
    os.rename("edge/certificates/s1.key", "s1.key")
    service = Service("refused", f"{os.getcwd()}/refused", "edge/nodes/s1/node.toml")
    check(service.process.wait(LONG_S) != 0, "a node without its key ends with an exit code")
    check(service.said() == [], f"a node that cannot start said {service.said()}")
    os.rename("s1.key", "edge/certificates/s1.key")


def services(at):
    # A path, a name in the abstract name space, and a path again.
    sockets = {"s0": f"{os.getcwd()}/notify-s0", "s1": f"@ordermoe-test-{os.getpid()}", "s2": f"{os.getcwd()}/notify-s2"}
    nodes = {name: Service(name, address, f"edge/nodes/{name}/node.toml") for name, address in sockets.items()}
    try:
        for name, node in nodes.items():
            check(eventually(lambda: "READY=1" in node.said()), f"{name} says that it is ready")
            check(node.said()[:1] == ["READY=1"], f"{name} says first that it is ready, and not {node.said()[:1]}")
        host, port = at.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=5).close()  # Who is ready listens.
        others_are_asked_about_who_listens_nowhere()
        alive_as_long_as_actors_answer(nodes["s0"], "s0")
        answers(at)
    finally:
        for name, node in nodes.items():
            code = node.end()
            check(code == 0, f"{name} ends with exit code {code}")
            check(eventually(lambda: "STOPPING=1" in node.said(), 5), f"{name} says that it ends: {node.said()[-3:]}")


def others_are_asked_about_who_listens_nowhere():
    status = lambda: ordermoe("cluster", "status", "--dir", "edge")
    check(eventually(lambda: status().returncode == 0), f"all serve: {status().stdout}{status().stderr}")
    check("listens nowhere; 2 of 2 others are connected" in status().stdout, f"s2 is judged by others: {status().stdout}")


def alive_as_long_as_actors_answer(node, name):
    before = node.n_alive()
    check(eventually(lambda: node.n_alive() >= before + 3), f"{name} goes on saying that it is alive")
    times = [when for when, what in list(node.heard) if what == "WATCHDOG=1"][-3:]
    check(times[-1] - times[0] > 0.3 * WATCHDOG_S, f"{name} says so all the time: {times}")
    with Stopped(node.process.pid) as stopped:
        check(stopped.all, "the actors' threads are held")
        time.sleep(1)  # What was on its way.
        before = node.n_alive()
        time.sleep(5 * WATCHDOG_S)
        check(node.n_alive() == before, f"{name} says that it is alive while its actors do nothing")
        check(node.process.poll() is None, f"{name} is there all the same")
    check(eventually(lambda: node.n_alive() > before), f"{name} is alive again")


def answers(at):
    with open("prompts.txt", "w") as file:
        file.write("Q: 12 * 3\n")
    check(eventually(lambda: ordermoe("cluster", "status", "--dir", "edge").returncode == 0), "all serve again")
    asked = ordermoe("run", "--connect", at, "--dir", "edge", "--prompts", "prompts.txt", "--max-new-tokens", "8")
    check(asked.returncode == 0, f"an answer comes: {asked.stderr}")


def the_units_verify():
    if shutil.which("systemd-analyze") is None:
        print("no systemd-analyze here: the units are not verified")
        return
    os.mkdir("units")
    for unit in UNITS:
        with open(unit) as file:
            text = file.read()
        # Found on systemd's path, be it /usr/bin or /usr/local/bin.
        start, name = "ExecStart=ordermoe ", os.path.basename(unit)
        check(start in text, f"{name} starts ordermoe")
        with open(f"units/{name}", "w") as file:
            file.write(text.replace(start, f"ExecStart={ORDERMOE} "))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"units/{name}"], capture_output=True, text=True)
        complaints = [line for line in (done.stdout + done.stderr).splitlines() if "ordermoe-" in line]
        check(not complaints, f"{name} verifies: {complaints}")


def an_installed_program_finds_its_data():
    os.makedirs("prefix/bin")
    os.makedirs("prefix/share/ordermoe")
    shutil.copy(ORDERMOE, "prefix/bin/ordermoe")
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "ORDERMOE_DATA"}
    done = subprocess.run(["prefix/bin/ordermoe", "calibrate", "--model", f"{DATA}/models/lineage", "--out", "none.json"],
                          capture_output=True, text=True, env=environment, timeout=LONG_S)
    check("prefix/share/ordermoe/eval/calibration.txt: no such file" in done.stderr,
          f"an installed program looks beside itself: {done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        at = prepare()
        a_node_that_cannot_start_is_never_ready()
        services(at)
        the_units_verify()
        an_installed_program_finds_its_data()
        os.chdir("/")
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
