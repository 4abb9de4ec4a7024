"""Walks the dashboard of a running cluster by keyboard alone, for campaign-dashboard, which says what is where in the environment.

In each of four windows (1280 and 390 pixels wide, light and dark) it streams a chat, sees a node killed and back, and changes the
plan; then it tries what must not work. Two smaller walks are before a gateway that has all servers in its process, and before one that
is a node. Prints a line for each step, and ends with the first that fails.

    dashboard_walk.py cluster | one-process | one-node"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import devtools
from devtools import Failed

PROGRAM, FOLDER, PLACE = (os.environ[name] for name in ("ORDERMOE_PROGRAM", "FOLDER", "PLACE"))
GATEWAY = os.environ["GATEWAY"]
WINDOWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
ROLES = ["viewer", "operator", "admin"]
VERBS = {"members": "viewer", "plan.show": "viewer", "plan.diff": "viewer", "plan.propose": "operator", "drain": "operator",
         "resume": "operator", "plan.apply": "admin", "plan.abort": "admin"}
tokens = {}


def say(text):
    print(text, flush=True)


def check(holds, what):
    if not holds:
        raise Failed(what)


def command(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    check(done.returncode == 0, f"ordermoe {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def admin(*arguments):
    told = json.loads(command("admin", "--dir", FOLDER, "--json", *arguments))
    return told.get("result", told)


def ask(path, token=None, body=None, at=GATEWAY):
    """Status and JSON of an answer."""
    request = urllib.request.Request(at + path, None if body is None else json.dumps(body).encode())
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def order(token, verb, at=GATEWAY, **more):
    """As the page gives it: strangers come slowly, and long orders are looked at until they end."""
    while (told := ask("/admin/orders", token, {"verb": verb, **more}, at))[0] == 429:
        time.sleep(1)
    while told[0] == 202:
        told = ask(f"/admin/orders/{told[1]['order']}", token, at=at)
    return told


def epochs():
    return {each.get("epoch") for each in ask("/ordermoe/status")[1]["servers"]}


# ------------------------------------------------------------------------------------------- one window


def quiet(page, what):
    check(not page.complaints, f"{what}: the console shows {page.complaints}")


def fits(page, what):
    # A narrow window says that it is as wide as what is too wide for it.
    width = page.run("document.documentElement.scrollWidth")
    check(width <= page.width, f"{what}: the page is {width} pixels wide in a window of {page.width}")


def shoot(page, name):
    fits(page, name)
    page.picture(f"{PLACE}/{name}.png")


def begin(browser, width, scheme):
    page = browser.page(width, 900 if width > 600 else 844, scheme)
    # Before anything is there: what moves afterwards is counted.
    page.ask("Page.addScriptToEvaluateOnNewDocument", source="window.shifted = 0; new PerformanceObserver((list) => {"
             " for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifted += each.value;"
             " }).observe({ type: 'layout-shift', buffered: true });")
    page.go(GATEWAY + "/")
    page.wait("document.querySelectorAll('#servers tbody tr').length === 4", "four servers are shown")
    page.wait("document.getElementById('servers-said').textContent === 'All 4 servers serve.'", "all of them serve")
    dark = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((each) => each < 60)")
    check(dark == (scheme == "dark"), f"the page is not {scheme}")
    return page


def chat(page, name):
    page.run("window.seen = []; new MutationObserver(() => window.seen.push([performance.now(),"
             " document.querySelectorAll('.token').length])).observe(document.getElementById('talk'), { childList: true, subtree: true })")
    page.tab_to("a[href='#prompt']")
    page.press("Enter")
    page.tab_to("#prompt")
    page.type("75 * 5")
    page.press("Enter")
    page.wait("[...document.querySelectorAll('.turn .cost')].at(-1)?.textContent.includes('tokens')", "the answer says what it cost")
    text = page.run("[...document.querySelectorAll('.turn .text')].at(-1).textContent")
    check("375" in text, f"75 * 5 is answered by {text!r}")
    times = {at for at, n in page.run("window.seen") if n}
    tokens_seen = page.run("[...document.querySelectorAll('.turn')].at(-1).querySelectorAll('.token').length")
    coloured = page.run("[...document.querySelectorAll('.token')].filter((each) => each.style.backgroundImage.includes('gradient')).length")
    check(tokens_seen > 5 and coloured >= tokens_seen, f"{tokens_seen} tokens, {coloured} of them with a bar")
    check(len(times) > 2, f"the answer came at {len(times)} times, expected a stream")
    quiet(page, name)
    say(f"{name}: {tokens_seen} tokens streamed")


def sign_in(page, role):
    page.tab_to("a[href='#operate-title'], #token")
    if page.run("document.activeElement.id") != "token":
        page.press("Enter")
        page.tab_to("#token")
    page.type(tokens[role])
    page.press("Enter")
    page.wait("!document.getElementById('operator').hidden", f"the {role} is signed in")
    check(page.run("document.getElementById('bearer').textContent") == f"Signed in as page-{role}, role {role}", "signed in as somebody else")
    kept = page.run("JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, document.documentElement.outerHTML])")
    check(tokens[role] not in kept and tokens[role][4:] not in kept, "the token is kept where others may find it")


def start_again(node):
    """As `cluster start` does, which starts all nodes or none."""
    with open(f"{FOLDER}/nodes/{node}/log", "ab") as log, open(f"{FOLDER}/nodes/{node}/pid", "w") as pid:
        begun = subprocess.Popen([PROGRAM, "node", "--config", f"{FOLDER}/nodes/{node}/node.toml"], stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=log, start_new_session=True)
        pid.write(f"{begun.pid}\n")


def kill_and_see(page, node, name):
    with open(f"{FOLDER}/nodes/{node}/pid") as file:
        os.kill(int(file.read().split()[0]), signal.SIGKILL)
    said = f"document.getElementById('servers-said').textContent.includes('{node} is down since')"
    seconds = page.wait(said, f"{node} is seen to be down", 10)
    check(page.run("document.querySelectorAll('#picture .down .cross').length") == 1, "the picture does not show it")
    check(page.run(f"[...document.querySelectorAll('#picture text')].some((each) => each.textContent === '{node} · down')"), "nor in words")
    check(page.run("[...document.querySelectorAll('#servers .state')].filter((each) => each.textContent === 'down').length") == 1, "nor the table")
    shoot(page, f"{name}-down")
    start_again(node)
    back = page.wait("document.getElementById('servers-said').textContent === 'All 4 servers serve.'", f"{node} is back", 30)
    check(page.run("document.querySelectorAll('#picture .down').length") == 0, "the picture shows it as down")
    quiet(page, name)
    say(f"{name}: {node} killed and seen after {seconds:.1f} s, seen to be back {back:.1f} s after it was started")


def await_members():
    """Every node connected with every other: a plan changes on all of them."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        told = admin("status")
        if all(each["state"] == "UN" and each.get("connected") == 3 for each in told["nodes"]):
            return
        time.sleep(0.2)
    raise Failed(f"the nodes do not find each other: {told}")


def drain_and_resume(page, node, name):
    button = f"#nodes button[aria-label$=' {node}']"
    for verb, is_drained in (("Drain", True), ("Resume", False)):
        page.tab_to(button)
        page.press("Enter")
        page.wait(f"document.getElementById('done').textContent.includes('{verb} {node}')", f"{node}: {verb}")
        check(admin("--node", node, "members")["drained"] == is_drained, f"{node} after {verb}")
        if is_drained:
            page.wait(f"document.getElementById('servers-said').textContent.includes('{node} is drained')", "it is told that it is drained")
        page.wait(f"document.querySelector(\"{button}\").textContent === '{'Resume' if is_drained else 'Drain'}'", "the button says what comes next")
        check(page.run(f"document.activeElement.matches(\"{button}\")"), "the button lost the focus")
    quiet(page, name)


def change_plan(page, strategy, name):
    before = admin("members")["epoch"]
    page.tab_to("#strategy")
    page.type(strategy[:2])
    check(page.run("document.getElementById('strategy').value") == strategy, f"typing does not choose {strategy}")
    page.tab_to("#propose-button")
    page.press("Enter")
    page.wait("!document.getElementById('proposal').hidden", "a plan is proposed", 120)
    check(page.run("document.activeElement.id") == "proposal-title", "the focus is not at the proposal")
    check(admin("members")["epoch"] == before, "a proposal changed the plan")
    text = page.run("document.getElementById('proposal').innerText")
    for part in (strategy, "A token takes, as expected", " ms → ", "Servers load", "expert"):
        check(part in text, f"the proposal does not say {part!r}: {text}")
    rows = page.run("[...document.querySelectorAll('#proposal-table tbody tr')].map((row) => [...row.cells].map((each) => each.textContent))")
    check(len(rows) == 4 and any(row[2] != "none" or row[3] != "none" for row in rows), f"what the servers gain and lose: {rows}")
    page.tab_to("#proposal-table summary")
    page.press("Enter")
    shoot(page, f"{name}-proposal")
    page.tab_to("#apply-button")
    page.press("Enter")
    page.wait("document.getElementById('confirm').open", "it is asked whether")
    page.press("Escape")
    page.wait("!document.getElementById('confirm').open", "Escape says no")
    check(page.run("document.activeElement.id") == "apply-button" and admin("members")["epoch"] == before, "Escape is no")
    page.press("Enter")
    page.wait("document.getElementById('confirm').open", "it is asked again")
    shoot(page, f"{name}-confirm")
    page.tab_to("#confirm-apply")
    page.press("Enter")
    page.wait("!document.getElementById('progress').hidden || document.getElementById('done').textContent.includes('Apply proposal')", "progress is shown")
    page.wait("document.getElementById('done').textContent.includes('Apply proposal')", "the plan is applied", 120)
    line = page.run("document.getElementById('done').firstElementChild.innerText")
    after = admin("members")["epoch"]
    check(after > before and re.search(rf"epoch {before} → {after}\b", line) and "operation s" in line, f"epoch {before}, then {after}: {line!r}")
    page.wait(f"document.getElementById('fact-plan').textContent === 'epoch {after}'", "all servers show the plan", 60)
    page.wait("document.getElementById('progress').hidden", "the change is over", 60)
    quiet(page, name)
    say(f"{name}: {line.split(maxsplit=1)[1]!r}")


def walk(browser, i, width, scheme):
    name = f"{width}-{scheme}"
    page = begin(browser, width, scheme)
    chat(page, name)
    shoot(page, f"{name}-chat")
    kill_and_see(page, f"s{i}", name)
    shifted = page.run("window.shifted")
    check(shifted < 0.1, f"{name}: what is on the page moved by {shifted}, expected below 0.1")
    sign_in(page, "admin")
    await_members()
    drain_and_resume(page, "s3", name)
    change_plan(page, ["layer-shards", "exact"][i % 2], name)
    shoot(page, f"{name}-done")
    page.close()


# ------------------------------------------------------------------------------------------- what must not work


def wrong_hands(browser):
    page = begin(browser, 1280, "light")
    page.tab_to("#token")
    page.type("omt_0123456789abcdef_" + "0" * 64)
    page.press("Enter")
    page.wait("document.getElementById('sign-in-problem').textContent.includes('does not hold')", "a wrong token is refused in words")
    check(page.run("document.getElementById('operator').hidden"), "nobody is shown the operator's part")
    # A browser's console tells of every answer with such a status.
    check(all("401" in each and "/admin/orders" in each for each in page.complaints), f"the console shows {page.complaints}")
    page.complaints.clear()
    sign_in(page, "viewer")
    for button in ("#propose-button", "#nodes button"):
        check(page.run(f"document.querySelector('{button}').getAttribute('aria-disabled') === 'true'"), f"a viewer may press {button}")
    before = len(admin("audit")["orders"])
    page.tab_to("#nodes button")
    page.press("Enter")
    page.tab_to("#propose-button")
    page.press("Enter")
    check(len(admin("audit")["orders"]) == before, "a viewer gave an order")
    page.tab_to("#sign-out")
    page.press("Enter")
    page.wait("document.getElementById('operator').hidden", "signed out")
    quiet(page, "a viewer")
    page.close()
    say("a wrong token is refused in words, and a viewer looks on")


def roles_and_verbs():
    wrong = tokens["admin"][:-1] + ("0" if tokens["admin"][-1] != "0" else "1")
    for verb, least in VERBS.items():
        # A node of its own: proposals are kept where they were made.
        more = {"node": "s0", "dry_run": True}
        for role in ROLES:
            status, told = order(tokens[role], verb, **more)
            may = ROLES.index(role) >= ROLES.index(least)
            check((status != 403) == may and status != 401, f"{verb} as {role}: {status} {told}")
        for token in (wrong, "nonsense", None):
            status, told = order(token, verb, **more)
            check(status == 401, f"{verb} with {token and token[:8]}: {status} {told}")
    check(ask("/admin/orders", tokens["admin"], {"verb": "token.list"})[0] == 400, "token.list is offered")
    check(not admin("--node", "s0", "members")["drained"], "a dry run drained s0")
    audited = admin("--node", "s0", "audit")["orders"]
    names = {each.get("token") for each in audited}
    check({"page-operator", "page-admin"} <= names, f"the audit knows {names}")
    check(not any(each.split("_")[-1] in json.dumps(audited) for each in tokens.values()), "a secret is in the audit")
    say(f"{len(VERBS)} verbs, {len(ROLES)} roles, wrong tokens and none: each as it should")


def crowd():
    """Wrong tokens as fast as they come, while somebody else works."""
    known = tokens["admin"]
    check(order(known, "members")[0] == 200, "the admin is not known")
    begun, refused, slowest = time.monotonic(), 0, 0.0
    for i in range(200):
        refused += ask("/admin/orders", f"omt_{i:016x}_{0:064x}", {"verb": "members"})[0] == 429
        if i % 10 == 0:
            at = time.monotonic()
            check(order(known, "members")[0] == 200, "a crowd holds an admin up")
            check(ask("/ordermoe/status")[0] == 200, "a crowd holds the gateway up")
            slowest = max(slowest, time.monotonic() - at)
    check(refused > 100, f"only {refused} of 200 wrong tokens were turned away")
    say(f"200 wrong tokens in {time.monotonic() - begun:.1f} s: {refused} were turned away unseen, an admin waited {slowest:.2f} s at most")


def disconnect():
    host, port = GATEWAY.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "Q: 75 * 5\nA:", "n": 16, "max_tokens": 400, "stream": True, "ignore_eos": True, "temperature": 1, "seed": 1})
    reserved = lambda: sum(each["reserved_bytes"] for each in ask("/ordermoe/status")[1]["servers"])
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        while b"data: " not in client.recv(1 << 16):
            pass
        held = reserved()
        check(held > 0, "a stream holds no memory")
    left = time.monotonic()
    while reserved():
        check(time.monotonic() - left < 10, "memory is held 10 s after a client is gone")
    took = time.monotonic() - left
    check(took <= 1, f"memory was free after {took:.2f} s, expected 1 s at most")
    with urllib.request.urlopen(GATEWAY + "/metrics") as answer:
        metrics = answer.read().decode()
    aborted = re.search(r'finished_reason="abort"\} (\d+)', metrics)
    check(aborted and int(aborted[1]) >= 8, "they ended by themselves")
    check("ordermoe_layer_executions_total{" in metrics, "executions are not told by layer")
    say(f"{held} bytes of KV memory were free {took:.3f} s after their client was gone")


# ------------------------------------------------------------------------------------------- other gateways


def one_process(browser):
    """`ordermoe serve` alone: there is nothing to administer, and the page says so."""
    status, told = ask("/admin/orders", "t", {"verb": "members"})
    check(status == 404 and told["error"]["code"] == "nothing_to_administer", f"{status} {told}")
    for i, (width, scheme) in enumerate(WINDOWS):
        page = browser.page(width, 900, scheme)
        page.go(GATEWAY + "/")
        page.wait("!document.getElementById('nothing').hidden", "it is told that there is nothing to administer")
        page.wait("document.getElementById('servers-said').textContent === 'All 8 servers serve.'", "the servers are shown")
        check(page.run("document.getElementById('sign-in').hidden && document.getElementById('operator').hidden"), "a token is asked for")
        if i == 0:
            chat(page, "one process")
        shoot(page, f"one-process-{width}-{scheme}")
        quiet(page, "one process")
        page.close()
    say("one process: nothing to administer, and it is said")


def one_node(browser):
    """`ordermoe serve --node`: orders go to the node that is in the gateway's process."""
    admin_token = os.environ["TOKEN"]
    status, told = order(admin_token, "members")
    check(status == 200 and told["result"]["node"] == "s3" and told["bearer"]["role"] == "admin", f"{status} {told}")
    status, told = order(admin_token, "drain", node="s0")
    check(status == 400 and "s3" in told["error"]["message"], f"{status} {told}")
    check(order("wrong", "drain")[0] == 401, "a wrong token is heard")
    page = browser.page(1280, 900, "light")
    page.go(GATEWAY + "/")
    page.wait("document.getElementById('servers-said').textContent === 'The server serves.'", "the server is shown")
    page.tab_to("#token")
    page.type(admin_token)
    page.press("Enter")
    page.wait("!document.getElementById('operator').hidden", "the admin is signed in")
    for verb, is_drained in (("Drain", True), ("Resume", False)):
        page.tab_to("#nodes button")
        page.press("Enter")
        page.wait(f"document.getElementById('done').textContent.includes('{verb} s3')", verb)
        check(admin("--node", "s3", "members")["drained"] == is_drained, f"s3 after {verb}")
        page.wait(f"document.querySelector('#nodes button').textContent === '{'Resume' if is_drained else 'Drain'}'", "the button turns")
    quiet(page, "one node")
    audited = admin("--node", "s3", "audit")["orders"]
    check(any(each["who"] == "gateway" and each.get("token") == "page-admin" for each in audited), f"the audit has {audited}")
    page.close()
    say("one node: its gateway's page drains and resumes it")


def main(part):
    browser = devtools.Browser(os.environ.get("CHROMIUM", "chromium"))
    try:
        if part != "cluster":
            return {"one-process": one_process, "one-node": one_node}[part](browser)
        for role in ROLES:
            tokens[role] = admin("token", "create", f"page-{role}", "--role", role, "--ttl", "1d")["token"]
        for i, (width, scheme) in enumerate(WINDOWS):
            walk(browser, i, width, scheme)
        wrong_hands(browser)
    finally:
        browser.close()
    await_members()
    roles_and_verbs()
    crowd()
    disconnect()
    with open(f"{PLACE}/token", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(tokens["admin"])


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Failed as problem:
        print(f"FAILED: {problem}", file=sys.stderr)
        sys.exit(1)
