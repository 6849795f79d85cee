"""The command and what all of its parts share: one line for each mistake, and an exit code.

Exit codes: 0 fine; 1 a check failed; 2 bad input, one line saying what and the fix; 3 no suitable GPU.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import hopper_gemm
from hopper_gemm.model.sealed import printable
from hopper_gemm.tune.measure.device import NoHopperError

PANELS = {
    "Use": ("doctor", "tune", "explain", "compare", "warmup", "prebuild", "table", "store"),
    "Study": ("sweep", "map", "simulate", "report", "export", "pack", "seal", "worker"),
    "Lab": ("ladder", "check", "counters", "trace"),
}
"""Every command by its panel of the help: what users need first, then studies, then the kernel taken apart."""


class PanelledGroup(TyperGroup):
    """Commands whose help has a section for each of :data:`PANELS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries of the commands, panel by panel."""
        for panel, names in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(SUMMARY)) for name in names])


SUMMARY = 80
"""Most characters of a command's summary in the help."""

app = typer.Typer(cls=PanelledGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

EXTRAS = {"distributed": "cluster", "cryptography": "cluster"}
"""Extra that installs a package, where it is not ``tune``."""

BAD_INPUT, CHECK_FAILED, NO_GPU, INTERRUPTED = 2, 1, 3, 130

LINE_SECONDS = 5.0
"""Time between two lines of progress where stderr is no terminal."""

MOVED = {"verify": "make verify", "chapters": "make chapters"}
"""Earlier commands by name, with the target of a checkout that does their work now."""


def entry(commands: typer.Typer = app, name: str = "hopper-gemm") -> None:
    """Run the command line under a name. A mistyped option gives one line of text. SIGTERM ends the command as Ctrl-C
    does, so that its locks are released."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = commands(prog_name=name, standalone_mode=False)
    except typer.Exit as error:
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except SystemExit as error:  # click's own, also where the reader of --help or --version closed the pipe
        code = 0 if isinstance(error.__context__, BrokenPipeError) else error.code
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().replace("Value error, ", "")  # Pydantic's words, not the user's
        is_usage = message.startswith("Usage")
        path = context.command_path if (context := getattr(error, "ctx", None)) else name
        moved = (target for old, target in MOVED.items() if message.startswith(f"No such command '{old}'"))
        fix = next((f"it is {target} in a checkout" for target in moved), f"see {path} --help")
        line = f"hopper-gemm: {message.splitlines()[0].rstrip('.')}; {fix}"
        print(message if is_usage else line, file=sys.stderr)
        code = BAD_INPUT
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has ended: write nothing more, at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """Print a line for each mistake on stderr, and exit."""
    for line in message.splitlines():
        print(f"hopper-gemm: {printable(line)}", file=sys.stderr)
    raise typer.Exit(code)


def command(body: Callable[..., None], commands: typer.Typer = app) -> Callable[..., None]:
    """Make a function a command; the errors that a user can correct become one line and an exit code."""

    @commands.command()
    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            body(*args, **kwargs)
        except NoHopperError as error:
            fail(str(error), NO_GPU)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "hopper_gemm"):
                raise
            extra = EXTRAS.get(package, "tune")
            lacks = f"{body.__name__} needs the package {package}, which is not installed"
            fail(f"{lacks}; pip install 'hopper-gemm[{extra}]'")
        except BrokenPipeError:  # click would make it exit code 1
            raise typer.Exit(0) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            fail(f"{where}{error.strerror or error}".splitlines()[0])
        except (ValueError, OverflowError, RecursionError) as error:
            fail(str(error) or type(error).__name__)

    return run


def stderr(text: str) -> None:
    """Print progress or a warning on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def saying(as_json: bool) -> Callable[[str], None]:
    """Return the function that prints text for a person: stdout, or stderr beside JSON."""
    return stderr if as_json else print


def _version(requested: bool) -> None:
    if requested:
        print(f"hopper-gemm {hopper_gemm.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def main(version: Version = False) -> None:
    """Fast matrix multiplication on NVIDIA Hopper GPUs: tune a problem, compare it, read the recorded studies."""
