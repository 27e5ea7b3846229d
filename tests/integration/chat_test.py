#!/usr/bin/env python3
"""octet run --chat as a user would use it, on a pseudo-terminal and in a pipe, with a tiny model of random weights.

usage: chat_test.py BUILD_FOLDER [unittest arguments]
"""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

TIMEOUT = 60  # for anything that is waited for, seconds; passed only when something is wrong

octet = ""
models = ""
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": {}}}]


def model(name="chat"):
    return os.path.join(models, name + ".gguf")


def environment(home, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OCTET_", "XDG_", "LC_", "LANG"))}
    return {**kept, "HOME": home, "TERM": "xterm", **more}


class Terminal:
    """octet on a pseudo-terminal of its own."""

    def __init__(self, case, *args, prepare=None, **env):
        self.case = case
        self.master, terminal = pty.openpty()
        if prepare:
            prepare(terminal)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")  # 24 rows, 80 columns

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.modes = termios.tcgetattr(terminal)
        self.process = subprocess.Popen([octet, "run", "-m", model(), "--threads", "1", "--chat", *map(str, args)], stdin=terminal,
                                        stdout=terminal, stderr=terminal, preexec_fn=take_terminal,
                                        env=environment(case.folder, **env))
        os.close(terminal)
        self.shown = b""
        case.addCleanup(self.close)
        self.greeting = self.wait_for(b"> ")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

    def read(self, deadline):
        ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
        self.case.assertTrue(ready, f"nothing more came behind {self.shown[-300:]!r}")
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            piece = b""
        self.shown += piece
        return piece

    def wait_for(self, pattern):
        """Reads until the pattern has come, returns what came until then, and forgets it."""
        deadline = time.monotonic() + TIMEOUT
        while not (found := re.search(pattern, self.shown, re.DOTALL)):
            self.case.assertTrue(self.read(deadline), f"{pattern} did not come: {self.shown[-300:]!r}")
        text, self.shown = self.shown[:found.end()], self.shown[found.end():]
        # The editor takes keys one by one only a moment after it has shown its prompt.
        while pattern.endswith(b"> ") and termios.tcgetattr(self.master)[3] & termios.ICANON:
            self.case.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        return text

    def type(self, keys):
        os.write(self.master, keys if isinstance(keys, bytes) else keys.encode())

    def ends(self):
        """Its exit code. The terminal is as it was."""
        deadline = time.monotonic() + TIMEOUT
        while self.read(deadline):
            pass
        self.case.assertEqual(termios.tcgetattr(self.master), self.modes)
        code = self.process.wait(TIMEOUT)
        if code != 0:
            print(self.shown.decode(errors="replace"))
        return code


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        Path(path).write_text(text)
        return path

    def run_octet(self, *args, text="", name="chat"):
        done = subprocess.run([octet, "run", "-m", model(name), "--threads", "1", *map(str, args)], input=text.encode(),
                              capture_output=True, env=environment(self.folder), timeout=TIMEOUT)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def chat(self, text, *args):
        return self.run_octet("--chat", "-n", 12, *args, text=text)


class InAPipe(Case):
    def test_answers_are_lines_and_depend_on_what_was_said(self):
        code, out, err = self.chat("hello\nhello\n")
        self.assertEqual(code, 0, err)
        first, second = out.splitlines()
        self.assertRegex(first, r"\A[a-z]+\Z")
        self.assertNotEqual(first, second)
        self.assertRegex(err, r"2 answers; prompts of \d+ tokens, [1-9]\d* of them in the cache already")

    def test_reset_forgets_and_exit_ends(self):
        code, out, err = self.chat("hello\nmore\n/reset\nhello\nmore\n/exit\nhello\n")
        self.assertEqual(code, 0, err)
        answers = out.splitlines()
        self.assertEqual(len(answers), 4)
        self.assertEqual(answers[:2], answers[2:])
        self.assertEqual(self.chat("\n  \n")[:2], (0, ""))

    def test_a_system_message_is_in_the_prompt_and_stays(self):
        plain = self.chat("hello\n")[1]
        code, out, err = self.chat("hello\n/reset\nhello\n", "--system", "Be brief.")
        self.assertEqual(code, 0, err)
        answers = out.splitlines()
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0] + "\n", plain)

    def test_what_cannot_be_asked_is_a_sentence_and_the_conversation_goes_on(self):
        expected = self.chat("hello\nmore\n")[1]
        code, out, err = self.chat(f"hello\n/no such\nrefuse\n{'x' * 500}\nmore\n", "--max-model-len", 200)
        self.assertEqual(code, 2)
        self.assertEqual(out, expected)
        for says in ("octet: there is no command '/no such'", "not like this", "room for 200", "/reset",
                     "octet: 3 lines could not be used"):
            self.assertIn(says, err)

    def test_a_line_far_too_long_is_refused_by_its_size(self):
        code, out, err = self.chat("x" * (70 << 20) + "\nhello\n")
        self.assertEqual((code, out), (2, self.chat("hello\n")[1]))
        self.assertRegex(err, r"octet: with this message the conversation has at least \d+ tokens and there is room for")

    def test_a_full_context_is_told(self):
        code, out, err = self.run_octet("--chat", "--max-model-len", 100, "--ignore-eos", text="hello\nmore\n/reset\nhello\n")
        self.assertEqual(code, 2)
        self.assertEqual(len(out.splitlines()), 2)
        self.assertIn("fills its 100 tokens; start a new one with /reset", err)
        self.assertIn("room for 100", err)

    def test_a_space_makes_a_command_a_message(self):
        code, out, err = self.chat(" /exit\nhello\n")
        self.assertEqual((code, len(out.splitlines())), (0, 2), err)

    def test_the_second_interrupt_ends_a_program_that_does_not_answer_the_first(self):
        process = subprocess.Popen([octet, "run", "-m", model(), "--threads", "1", "--chat", "--ignore-eos", "-n", "100000"], env=environment(self.folder),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        fcntl.fcntl(process.stdout, 1031, 4096)  # F_SETPIPE_SZ: full soon, so that the answer waits for its reader
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        deadline = time.monotonic() + TIMEOUT
        waiting = 0
        while waiting < 4096 and time.monotonic() < deadline:
            time.sleep(0.01)
            waiting = int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)), sys.byteorder)
        self.assertEqual(waiting, 4096)
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.assertEqual(process.wait(TIMEOUT), 130)


class Flags(Case):
    def fails(self, code, *args, says, name="chat"):
        done = self.run_octet(*args, name=name)
        self.assertEqual(done[:2], (code, ""), done[2])
        self.assertRegex(done[2], r"\Aoctet: \S[^\n]*\n\Z")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, done[2])

    def test_a_model_without_template_is_refused(self):
        self.fails(2, "--chat", says=["no chat template", "-p"], name="base")
        self.fails(2, "--apply-chat-template", "-p", "x", says=["no chat template", "-p"], name="base")

    def test_flags_that_do_not_go_together(self):
        for flag in (["-p", "x"], ["-f", model()], ["--json"], ["--no-special"]):
            self.fails(2, "--chat", *flag, says="--chat")
        self.fails(2, "-p", "x", "--tools", "t.json", says=["--tools", "--chat"])
        self.fails(2, "-p", "x", "--system", "s", says=["--system", "--chat"])

    def test_tools(self):
        tools = self.file("tools.json", json.dumps(TOOLS))
        asks = ["--apply-chat-template", "-p", "x", "-n", 2, "--json"]
        without = json.loads(self.run_octet(*asks)[1])["prompt_ids"]
        code, out, err = self.run_octet(*asks, "--tools", tools)
        self.assertEqual(code, 0, err)
        prompt = bytes(i for i in json.loads(out)["prompt_ids"] if i < 256)
        self.assertGreater(len(prompt), len(without))
        code, out, err = self.chat("time?\n/tool noon\n/help\n", "--tools", tools)
        self.assertEqual((code, len(out.splitlines())), (0, 2), err)
        self.assertIn("/tool", err)
        self.assertIn("there is no command '/tool noon'", self.chat("/tool noon\n")[2])
        for first in ("", "hello\n/reset\n"):
            code, out, err = self.chat(first + "/tool noon\n", "--tools", tools)
            self.assertEqual((code, len(out.splitlines())), (2, min(1, len(first))), err)
            self.assertIn("no answer yet that could have called a tool", err)
        many = self.file("many.json", json.dumps(TOOLS * 10))
        self.fails(2, *asks, "--tools", many, "--max-model-len", 100, says=["the tools of --tools", "fewer tools"])
        self.assertIn("the tools of --tools", self.chat("hello\n", "--tools", many, "--max-model-len", 100)[2])
        code, out, err = self.run_octet("--chat", "--tools", self.file("bad.json", "{"))
        self.assertIn("this is not JSON: parse error at line 1", err)
        self.assertNotIn("exception", err)
        self.fails(3, "--chat", "--tools", tools, says="--tools", name="no_tools")
        for text in ("", "{", "{}", "[]", '[{"type": "function"}]'):
            bad = self.file("bad.json", text)
            self.fails(2, "--chat", "--tools", bad, says="bad.json")
        self.fails(2, "--chat", "--tools", os.path.join(self.folder, "none.json"), says="none.json")

    def test_penalties_and_bias(self):
        text = lambda *args: self.run_octet("-p", "x", "-n", 40, "--ignore-eos", *args)[1].strip()
        a, b = ord("a"), ord("b")
        self.assertEqual(text("--logit-bias", f"{a}=100"), "a" * 40)
        biased = ["--logit-bias", f"{a}=100", f"--logit-bias={b}=90"]
        self.assertEqual(text(*biased), "a" * 40)
        self.assertEqual(set(text(*biased, "--frequency-penalty", 2)), {"a", "b"})
        near = ["--logit-bias", f"{a}=100,{b}=100"]
        self.assertEqual(set(text(*near, "--presence-penalty", 2, "--frequency-penalty", 1)), {"a", "b"})
        for value in ("5", "5=", "=5", "a=1", "5=x", "5=1,", "", "5=1=1", "99999999999=1", "5 =1"):
            self.fails(2, "-p", "x", f"--logit-bias={value}", says="--logit-bias")
        for value, says in (("258=1", "258"), ("5=101", "100"), ("5=nan", "nan"), ("5=1,5=2", "twice"), ("-5=1", "-5")):
            self.fails(2, "-p", "x", f"--logit-bias={value}", says=says)
        for flag in ("presence", "frequency"):
            for value in ("2.5", "-3", "nan", "inf"):
                self.fails(2, "-p", "x", f"--{flag}-penalty={value}", says=f"--{flag}-penalty")


class OnATerminal(Case):
    def test_a_conversation(self):
        expected = self.chat("hello\nmore\n")[1].splitlines()
        terminal = Terminal(self, "-n", 12)
        terminal.type("hello\r")
        self.assertIn(expected[0].encode(), terminal.wait_for(rb"hello\r\n.*\r\n.*> "))
        terminal.type("more\r")
        self.assertIn(expected[1].encode(), terminal.wait_for(rb"more\r\n.*\r\n.*> "))
        terminal.type("/reset\r")
        terminal.wait_for(rb"\(this is a new conversation\).*> ")
        terminal.type("hello\r")
        self.assertIn(expected[0].encode(), terminal.wait_for(rb"hello\r\n.*\r\n.*> "))
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        terminal = Terminal(self, "--ignore-eos", "-n", 100000, "--max-model-len", 16384)
        for _ in range(2):
            terminal.type("hello\r")
            answer = terminal.wait_for(rb"hello\r\n.*[a-z]{20}")
            terminal.type(b"\x03")
            answer += terminal.wait_for(rb"\(the answer is stopped\).*> ")
            self.assertLess(len(answer), 12000)
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_ctrl_c_at_the_prompt_empties_the_line(self):
        terminal = Terminal(self)
        # At once behind the echo: the editor is then anywhere between two reads.
        for _ in range(100):
            terminal.type("/garbage")
            terminal.wait_for(b"/garbage")
            terminal.type(b"\x03")
            terminal.wait_for(b"> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)
        self.assertNotIn(b"no command", terminal.shown)

    def test_ctrl_d_ends(self):
        terminal = Terminal(self)
        terminal.type(b"\x04")
        self.assertEqual(terminal.ends(), 0)

    def test_the_line_can_be_edited(self):
        terminal = Terminal(self)
        terminal.type("elp\x01/hx\x7f\r")  # Ctrl-A to the front, a wrong letter and backspace
        terminal.wait_for(rb"/reset   starts.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_the_arrow_brings_back_earlier_lines_and_those_of_the_last_time(self):
        history = os.path.join(self.folder, ".local/state/octet/history")
        terminal = Terminal(self)
        for line in ("/one", "/two"):
            terminal.type(line + "\r")
            terminal.wait_for(f"no command '{line}'.*> ".encode())
        terminal.type("\x1b[A\x1b[A\r")
        terminal.wait_for(rb"no command '/one'.*> ")
        terminal.type(b"\x04")
        self.assertEqual(terminal.ends(), 0)
        self.assertEqual(stat.S_IMODE(os.stat(history).st_mode), 0o600)
        self.assertEqual(os.listdir(os.path.dirname(history)), ["history"])

        terminal = Terminal(self)
        terminal.type("\x1b[A\x1b[A\r")
        terminal.wait_for(rb"no command '/two'.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_the_history_goes_where_it_is_told_or_nowhere(self):
        state = os.path.join(self.folder, "state")
        terminal = Terminal(self, XDG_STATE_HOME=state)
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)
        self.assertIn("/exit", Path(state, "octet/history").read_text())
        terminal = Terminal(self, OCTET_NO_HISTORY="1")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)
        self.assertFalse(os.path.exists(os.path.join(self.folder, ".local")))

    def test_a_history_that_cannot_be_kept_is_one_warning(self):
        Path(self.folder, "state").write_text("a file where the folder should be")
        terminal = Terminal(self, XDG_STATE_HOME=os.path.join(self.folder, "state"))
        self.assertEqual(terminal.greeting.count(b"octet: warning: "), 1)
        terminal.type("/help\r")
        terminal.wait_for(rb"/reset   starts.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)
        os.remove(os.path.join(self.folder, "state"))
        history = Path(self.folder, ".local/state/octet/history")
        history.parent.mkdir(parents=True)
        for content, damaged in ((b"\xff\0 no history\n" * 50, True), (b"", False)):
            history.write_bytes(content)
            terminal = Terminal(self)
            self.assertEqual(b"remove it" in terminal.greeting, damaged)
            terminal.type("/exit\r")
            self.assertEqual(terminal.ends(), 0)
            self.assertEqual(history.read_bytes().startswith(b"_HiStOrY_V2_"), not damaged)

    def test_pasted_lines_are_one_message(self):
        terminal = Terminal(self)
        terminal.type("\x1b[200~/one\rtwo\x1b[31m\tthree\r\x1b[201~")
        terminal.wait_for(b"three")
        terminal.type("\r")
        terminal.wait_for(rb"\(1 pasted control character left out\).*no command '/one\\x0atwo\[31m\\x09three'.*> ")
        terminal.type("/a\x1b\rb\r")  # Alt-Enter
        terminal.wait_for(rb"no command '/a\\x0ab'.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_ctrl_c_inside_a_paste_empties_the_line(self):
        terminal = Terminal(self)
        terminal.type("/some\x1b[200~half a paste")
        terminal.wait_for(b"/some")
        terminal.type(b"\x03")
        terminal.wait_for(b"> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_a_terminal_that_can_do_nothing(self):
        terminal = Terminal(self, TERM="dumb")
        terminal.type("/help\r")
        terminal.wait_for(rb"/reset   starts.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def history(self):
        path = Path(self.folder, ".local/state/octet/history")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def one_line_chat(self, line):
        """What the terminal showed before the first prompt of a chat of one line."""
        terminal = Terminal(self)
        terminal.type(line + "\r")
        terminal.wait_for(f"no command '{line}'.*> ".encode())
        terminal.type(b"\x04")
        self.assertEqual(terminal.ends(), 0)
        return terminal.greeting

    def test_chats_that_are_open_at_once_share_the_history(self):
        terminals = [Terminal(self), Terminal(self)]
        for lines in (("/a", "/b"), ("/c d", "/e")):
            for terminal, line in zip(terminals, lines):
                terminal.type(line + "\r")
                terminal.wait_for(f"no command '{line}'.*> ".encode())
        for terminal in reversed(terminals):
            terminal.type(b"\x04")
            self.assertEqual(terminal.ends(), 0)
        self.assertEqual(self.history().read_bytes(), b"_HiStOrY_V2_\n/a\n/b\n/c\\040d\n/e\n")

    def test_a_long_history_is_cut_at_the_start(self):
        self.history().write_text("_HiStOrY_V2_\n" + "".join(f"/line{i}\n" for i in range(1500)))
        self.one_line_chat("/new")
        lines = self.history().read_text().splitlines()
        self.assertEqual((lines[1], lines[-2:]), ("/line500", ["/line1499", "/new"]))
        self.assertEqual(os.listdir(self.history().parent), ["history"])

    def test_a_last_line_that_was_cut_off_spoils_no_other(self):
        self.history().write_text("_HiStOrY_V2_\n/cut")
        self.one_line_chat("/new")
        self.assertEqual(self.history().read_text(), "_HiStOrY_V2_\n/cut\n/new\n")

    def test_a_link_in_the_place_of_the_history_is_followed(self):
        link = self.history()
        for size in (1, 1200):  # the second is cut
            target = Path(self.folder, f"mine{size}")
            target.write_text("_HiStOrY_V2_\n" + "".join(f"/line{i}\n" for i in range(size)))
            link.symlink_to(target)
            self.assertNotIn(b"warning", self.one_line_chat("/new"))
            self.assertEqual(os.readlink(link), str(target))
            self.assertEqual(target.read_text().splitlines()[-2:], [f"/line{size - 1}", "/new"])
            link.unlink()
        link.symlink_to("/dev/null")
        self.assertNotIn(b"warning", self.one_line_chat("/none"))
        self.assertEqual(os.readlink(link), "/dev/null")
        self.assertEqual(os.listdir(link.parent), ["history"])
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_a_history_that_may_not_be_written_is_left_alone(self):
        os.mkfifo(self.history())
        self.assertEqual(self.one_line_chat("/one").count(b"octet: warning: "), 1)
        self.assertTrue(stat.S_ISFIFO(os.stat(self.history()).st_mode))
        self.history().unlink()
        self.history().write_text("_HiStOrY_V2_\n/old\n")
        self.history().chmod(0o400)
        self.assertEqual(self.one_line_chat("/one").count(b"octet: warning: "), 1)
        self.assertEqual(self.history().read_text(), "_HiStOrY_V2_\n/old\n")

    def test_ctrl_c_while_ctrl_s_holds_the_terminal_loses_nothing(self):
        expected = self.chat("hello\nmore\n")[1].splitlines()
        terminal = Terminal(self, "-n", 12)
        terminal.type("hello\r")
        terminal.wait_for(rb"hello\r\n.*\r\n.*> ")
        terminal.type(b"\x13")
        time.sleep(0.2)
        terminal.type("x")
        time.sleep(0.2)  # for octet to write it: the terminal forgets what was not read when Ctrl-C comes
        terminal.type(b"\x03")
        terminal.wait_for(b"x")  # Ctrl-C lets the output go on
        terminal.wait_for(b"\r\n.*> ")
        terminal.type("more\r")
        self.assertIn(expected[1].encode(), terminal.wait_for(rb"more\r\n.*\r\n.*> "))
        terminal.type("/reset\r")
        terminal.wait_for(rb"this is a new conversation\).*> ")
        for text, answer in zip(("hello", "more"), expected):
            terminal.type(text + "\r")
            self.assertIn(answer.encode(), terminal.wait_for(text.encode() + rb"\r\n.*\r\n.*> "))
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            terminal = Terminal(self)
            terminal.process.send_signal(number)
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(terminal.ends(), -number)
            self.assertTrue(terminal.shown.endswith(b"\x1b[?2004l"), terminal.shown)

    def shell_with_a_chat(self):
        """One with job control: nobody can stop a program that has no parent in its session."""
        pid, master = pty.fork()
        if pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment(self.folder, PS1="$ "))
        shell = Terminal.__new__(Terminal)
        shell.case, shell.master, shell.shown = self, master, b""
        self.addCleanup(os.close, master)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        shell.wait_for(rb"\$ ")
        shell.type(f"'{octet}' run --chat -m '{model()}' --threads 1\r")
        shell.wait_for(rb"\x1b\[\?2004h.*> ")
        return shell

    def test_a_stopped_chat_goes_on(self):
        shell = self.shell_with_a_chat()
        shell.type(b"\x1a")
        shell.wait_for(rb"\x1b\[\?2004l.*Stopped.*\$ ")
        shell.type("fg\r")
        shell.wait_for(rb"\x1b\[\?2004h.*> ")
        shell.type("\x1b[200~/one\rtwo\x1b[201~\r")
        shell.wait_for(rb"no command '/one\\x0atwo'.*> ")
        shell.type("/exit\r")
        shell.wait_for(rb"\x1b\[\?2004l.*\$ ")

    def test_any_language_is_typed(self):
        for lang in ("C", "C.UTF-8"):
            terminal = Terminal(self, LANG=lang)
            terminal.type("/Grüße世界🙂x\x7f\r")
            terminal.wait_for("no command '/Grüße世界🙂'.*> ".encode())
            terminal.type("/exit\r")
            self.assertEqual(terminal.ends(), 0)

    def test_a_history_that_another_program_holds_is_not_waited_for(self):
        self.history().write_text("_HiStOrY_V2_\n")
        with open(self.history()) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            terminal = Terminal(self)
            self.assertRegex(terminal.greeting, rb"warning: .*cannot lock")
            terminal.type("/one\r")
            terminal.wait_for(rb"no command '/one'.*> ")
            terminal.type("/exit\r")
            self.assertEqual(terminal.ends(), 0)

    def test_settings_that_are_no_file_are_passed_over(self):
        os.mkfifo(os.path.join(self.folder, ".editrc"))
        terminal = Terminal(self)
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_bytes_that_are_no_text_are_counted_and_left_out(self):
        terminal = Terminal(self)
        for typed, shown, left_out in ((b"/a\xffb", b"/ab", b"1 byte that is"), (b"/a\xe4\xb8c", b"/ac", b"2 bytes that are"),
                                       (b"/\xc3\xc3\xbc\x80", "/ü".encode(), b"2 bytes that are")):
            terminal.type(typed + b"\r")
            terminal.wait_for(rb"\(" + left_out + rb" not UTF-8 left out\).*no command '" + shown + rb"'.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_a_window_that_changes_keeps_the_line(self):
        terminal = Terminal(self)
        terminal.type("/one")
        terminal.wait_for(b"/one")
        for columns in (b"\x60", b"\x40"):
            fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, b"\x18\x00" + columns + b"\x00\x00\x00\x00\x00")
            terminal.wait_for(b"/one")
        terminal.type("two\r")
        terminal.wait_for(rb"no command '/onetwo'.*> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.ends(), 0)

    def test_what_is_typed_ahead_of_the_end_is_the_shells(self):
        shell = self.shell_with_a_chat()
        shell.type("/exit\recho a$((6*7))z\r")
        shell.wait_for(rb"a42z")

    def test_a_stopped_chat_ends_by_a_signal(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            shell = self.shell_with_a_chat()
            shell.type(b"\x1a")
            shell.wait_for(rb"Stopped.*\$ ")
            shell.type(f"kill -{int(number)} %1; kill -CONT %1; wait %1; echo code $?\r")
            shell.wait_for(f"code {128 + number}".encode())

    def test_a_signal_gives_back_the_modes_that_were_there(self):
        def no_echo(terminal):
            modes = termios.tcgetattr(terminal)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, modes)

        terminal = Terminal(self, prepare=no_echo)
        terminal.process.send_signal(signal.SIGTERM)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(terminal.ends(), -signal.SIGTERM)

    def test_a_signal_ends_a_chat_whose_terminal_is_held(self):
        terminal = Terminal(self)
        terminal.type(b"\x13")  # Ctrl-S
        time.sleep(0.2)
        terminal.type("x" * 100)
        terminal.process.send_signal(signal.SIGTERM)
        self.assertEqual(terminal.process.wait(TIMEOUT), -signal.SIGTERM)

    def test_a_terminal_that_goes_away_ends_the_program(self):
        terminal = Terminal(self)
        master = terminal.master
        terminal.master = os.open("/dev/null", os.O_RDONLY)  # for close()
        os.close(master)
        self.assertIn(terminal.process.wait(TIMEOUT), (0, -signal.SIGHUP))


def main():
    global octet, models
    build = os.path.abspath(sys.argv[1])
    octet = os.path.join(build, "bin", "octet")
    with tempfile.TemporaryDirectory() as folder:
        models = folder
        subprocess.run([os.path.join(build, "bin", "write_tiny_chat_model"), folder], check=True)
        program = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False)
    return 0 if program.result.wasSuccessful() and program.result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
