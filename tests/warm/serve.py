"""An interpreter that has imported torch already, for tests that start many: importing is most of their time.

    python serve.py FOLDER [MODULE …]

Writes FOLDER/python, which is called as python itself (`-W ignore` or nothing, a script on standard input, arguments after `-`)
and runs the script in a fork of this process. Ends, and removes the folder, when its standard input ends.
"""

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys

CLIENT = """#!{python} -IS
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX)
there.connect({address!r})
at = sys.argv.index("-") + 1
call = json.dumps([sys.argv[1:at], sys.argv[at:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(there, [b"%10d" % len(call)], [0, 1, 2])
there.sendall(call)
sys.exit(int(there.makefile().read() or 1))
"""


def run(call, descriptors):
    """Becomes the process that the client wanted to be; returns its exit code."""
    (*options, dash), arguments, place, environment = call
    assert dash == "-" and options in ([], ["-W", "ignore"]), (options, dash)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    sys.argv, sys.path[0] = ["-", *arguments], ""
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    with open(0, encoding="utf-8", closefd=False) as script:
        text = script.read()
    try:
        exec(compile(text, "<stdin>", "exec"), vars(main))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def served(client):
    """A fork for the call, and one beside it that waits for it and tells the client how it ended."""
    size, descriptors, _, _ = socket.recv_fds(client, 10, 3)
    call = json.loads(client.recv(int(size), socket.MSG_WAITALL))
    child = os.fork()
    if not child:
        client.close()
        code = 1
        try:
            code = run(call, descriptors)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.sendall(str(code if code >= 0 else 128 - code).encode())


def main():
    folder, *modules = sys.argv[1:]
    for module in modules:  # each is left out where it is missing
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    address = os.path.join(folder, "socket")
    listens = socket.socket(socket.AF_UNIX)
    listens.bind(address)
    listens.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    client = os.path.join(folder, "python")
    with open(client + ".new", "w", encoding="utf-8") as file:
        file.write(CLIENT.format(python=sys.executable, address=address))
    os.chmod(client + ".new", 0o700)
    os.rename(client + ".new", client)
    print("ready", flush=True)
    while listens in select.select([listens, 0], [], [])[0]:
        connected, _ = listens.accept()
        if not os.fork():
            listens.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                served(connected)
            finally:
                os._exit(0)
        connected.close()
    shutil.rmtree(folder)


main()
