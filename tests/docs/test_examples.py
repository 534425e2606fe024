"""README and docs promise only what happens: every example is run, literally, as a newcomer would run it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

import tallystick.serverless
from tallystick import settings
from tallystick.cli.tally import tally as tally_group
from tests.cli.commands import TALLY
from tests.docs.examples import FILES, ROOT, RUNNABLE, Example, examples

ALL = [example for file in FILES for example in examples(file)]
START_SECONDS = 120
EXAMPLE_SECONDS = 90


@dataclass
class Reader:
    """Somebody who tries what he reads: one service, one folder, and what was answered last."""

    folder: Path
    port: str
    home: Path
    environment: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)

    def run(self, command: list[str], text: str) -> str:
        done = subprocess.run(
            command,
            input=text.replace("localhost:8080", f"127.0.0.1:{self.port}"),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=EXAMPLE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n--- said\n{done.stdout}\n{done.stderr}"
        self.remember(done.stdout)
        return done.stdout

    def shell(self, example: Example) -> str:
        said = ""
        for names, text in example.parts():
            missing = [name for name in names if name not in self.values]
            assert not missing, f"{example.name}: nothing that was answered is a {missing}"
            # What was filled in once stays, as in a person's shell.
            known = "".join(f"{name}={value}\n" for name, value in self.values.items())
            said += self.run(["/bin/bash", "-euo", "pipefail"], known + text) + "\n"
        return said

    def remember(self, answers: str) -> None:
        """Ids of the last answers, under the names that README gives them."""
        for line in answers.replace("}{", "}\n{").splitlines():
            if not line.startswith("{"):
                continue
            answer = json.loads(line)
            name = str(answer.get("id", ""))
            if "reservation_token" in answer:
                self.values |= {"ORDER": name, "TOKEN": answer["reservation_token"]}
            elif name.startswith("st_"):
                self.values["SETTLEMENT"] = name


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`tally up` in a new folder, with the key it printed; curl fails where the service refuses."""
    folder = tmp_path_factory.mktemp("newcomer")
    folder.chmod(0o755)
    home = folder / ".tally"
    programs = folder / "bin"
    programs.mkdir()
    (programs / "tally").write_text(f"#!{sys.executable}\nfrom tallystick.cli import main\nmain()\n")
    (programs / "tally").chmod(0o755)
    (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TALLY_")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TALLY_HOME": str(home),
    }
    up = subprocess.Popen(
        [*TALLY, "up"],
        env={**environment, "TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert up.stderr is not None
    said = ""
    while "Ctrl-C" not in said:
        line = up.stderr.readline()
        assert line, said
        said += line
    port = re.search(r"API +http://127\.0\.0\.1:(\d+)/v1", said)
    simulator = re.search(r"Simulator +http://127\.0\.0\.1:(\d+)", said)
    key = re.search(r"API key +(\S+)", said)
    assert port, said
    assert simulator, said
    assert key, said
    environment["TALLY_SIMULATOR_PORT"] = simulator.group(1)
    yield Reader(folder, port.group(1), home, environment, {"KEY": key.group(1)})
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0


def test_every_example_is_run_or_says_why_not() -> None:
    run = [example for example in ALL if example.language in RUNNABLE and example.not_run is None]
    assert len([example for example in run if example.file == "README.md"]) >= 8
    odd = [example.name for example in ALL if example.language not in (*RUNNABLE, "", "toml", "json")]
    assert odd == [], "a block of a language that nobody runs"
    commands = re.compile(r"^(tally|curl|make|pip|export|psql|kafka-topics\.sh) ", re.MULTILINE)
    unnamed = [example.name for example in ALL if not example.language and commands.search(example.text)]
    assert unnamed == [], "a block of commands that is not called one"


def test_the_examples_of_the_readme_do_what_it_says(reader: Reader) -> None:
    told: list[str] = []
    for example in examples("README.md"):
        if example.not_run is not None or example.language not in RUNNABLE:
            continue
        match example.language:
            case "sh" if example.is_endless:
                _until_ctrl_c(reader, example)
            case "sh":
                told.append(reader.shell(example))
            case "python":
                told.append(reader.run([sys.executable, "-"], _program(example.text)))
            case other:
                raise AssertionError(other)
    said = "\n".join(told)
    # What the sentences around them promise.
    assert '"status":"PAID"' in said.replace(" ", "")
    assert len(set(re.findall(r"^(tx_\w+)$", said, re.MULTILINE))) >= 2, "the library's transactions, of both twins"
    assert re.search(r"settlement st_\w+", said), "what `tally explain` shows"


@pytest.mark.parametrize(
    "example",
    [example for example in ALL if example.language == "sql" and example.not_run is None],
    ids=lambda example: example.name,
)
def test_the_statements_of_the_docs_run(example: Example, reader: Reader) -> None:
    reader.run(["tally", "psql", "-v", "ON_ERROR_STOP=1", "-f", "-"], example.text)


def test_the_commands_of_the_docs_run(reader: Reader) -> None:
    for example in ALL:
        if example.language == "sh" and example.not_run is None and example.file != "README.md":
            reader.shell(example)


@pytest.mark.parametrize(
    "example",
    [example for example in ALL if example.not_run is not None and example.language == "sh"],
    ids=lambda example: example.name,
)
def test_what_is_not_run_is_at_least_understood(example: Example) -> None:
    """Commands with their options, functions and scripts by their names: who copies them meets no slip of ours."""
    text = example.text.replace("\\\n", " ")
    for line in text.replace(" && ", "\n").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["tally"]:
            _parsed(tally_group, words[1:])
        for script in re.findall(r"^deploy/\S+", line):
            assert os.access(ROOT / script, os.X_OK), script
    for function in re.findall(r"tallystick\.serverless\.(\w+)|from tallystick\.serverless import (\w+)", text):
        assert callable(getattr(tallystick.serverless, "".join(function)))
    named = set(re.findall(r"\b(TALLY_\w+)=", text))
    assert named <= {spec.name for spec in settings.SPECS}
    for target in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


def _parsed(command: click.Command, words: list[str]) -> None:
    """As far as its arguments go, and no further."""
    made = command.make_context(command.name, words)
    if isinstance(command, click.Group):
        _, found, rest = command.resolve_command(made, [*made._protected_args, *made.args])
        assert found is not None
        _parsed(found, rest)


def test_every_command_that_the_docs_name_exists() -> None:
    """`tally something` in running text, too."""
    shown = subprocess.run([*TALLY, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^  (\w+)", shown.split("Commands:")[1], re.MULTILINE))
    for file in FILES:
        text = (ROOT / file).read_text(encoding="utf-8")
        named = set(re.findall(r"`tally ([a-z]+)\b", text)) | set(re.findall(r"^tally ([a-z]+)\b", text, re.MULTILINE))
        assert named <= known, file


def _program(text: str) -> str:
    """An example as a whole program: `async with` stands for itself in a function."""
    if "async with" not in text:
        return text
    return f"import asyncio\n\nasync def main():\n{textwrap.indent(text, '    ')}\n\nasyncio.run(main())\n"


def _until_ctrl_c(reader: Reader, example: Example) -> None:
    """It goes on until it is ended, and ends well."""
    with subprocess.Popen(
        ["/bin/bash", "-euo", "pipefail", "-c", example.text],
        cwd=reader.folder,
        env={**reader.environment, "TALLY_SIMULATOR_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert "http://127.0.0.1:" in line, line + (process.stdout.read() if process.poll() is not None else "")
        finally:
            # As a terminal does: to everybody in the foreground.
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
