"""An interpreter that has imported torch already, for tests that start many: importing is most of their time.

    python serve.py FOLDER [MODULE …]

Writes FOLDER/python, which is called as python itself (`-W ignore` or nothing, a script's path or `-` for standard input, arguments)
and runs the script in a fork of this process. What a script imports of these libraries, by the names at its top, is imported before
the fork, and so once. Ends, and removes the folder, when its standard input ends.
"""

import contextlib
import importlib
import json
import os
import re
import select
import shutil
import socket
import sys

CLIENT = """#!{python} -IS
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX)
there.connect({address!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(there, [b"%10d" % len(call)], [0, 1, 2])
there.sendall(call)
sys.exit(int(there.makefile().read() or 1))
"""


LIBRARIES = ("torch", "torchvision", "transformers", "safetensors")


def imported(script, seen):
    """Imports what a script and those beside it import of the libraries."""
    with open(script, encoding="utf-8") as file:
        names = re.findall(r"^(?:import|from) ([\w.]+)", file.read(), re.MULTILINE)
    for name in names:
        beside = os.path.join(os.path.dirname(script), f"{name}.py")
        if name.split(".")[0] in LIBRARIES:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
        elif name not in seen and os.path.exists(beside):
            seen.add(name)
            imported(beside, seen)


def parted(given):
    """Returns the script and its arguments."""
    if given[:2] == ["-W", "ignore"]:
        given = given[2:]
    assert given[0] == "-" or not given[0].startswith("-"), given
    return given[0], given[1:]


def run(call, descriptors):
    """Becomes the process that the client wanted to be; returns its exit code."""
    given, place, environment = call
    script, arguments = parted(given)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    if script != "-":
        main.__file__ = script
    with open(0 if script == "-" else script, encoding="utf-8", closefd=script != "-") as file:
        text = file.read()
    try:
        exec(compile(text, "<stdin>" if script == "-" else script, "exec"), vars(main))
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def served(client, call, descriptors):
    """A fork for the call, and one beside it that waits for it and tells the client how it ended."""
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
    client = os.path.join(folder, "python")
    with open(client + ".new", "w", encoding="utf-8") as file:
        file.write(CLIENT.format(python=sys.executable, address=address))
    os.chmod(client + ".new", 0o700)
    os.rename(client + ".new", client)
    print("ready", flush=True)
    while listens in select.select([listens, 0], [], [])[0]:
        connected, _ = listens.accept()
        size, descriptors, _, _ = socket.recv_fds(connected, 10, 3)
        call = json.loads(connected.recv(int(size), socket.MSG_WAITALL))
        if (script := parted(call[0])[0]) != "-":
            imported(os.path.join(call[1], script), set())
        if not os.fork():
            listens.close()
            try:
                served(connected, call, descriptors)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        connected.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # their time is ours
                pass
    shutil.rmtree(folder)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


main()
