"""The ``ostinato`` command.

    ostinato
    ├── serve   load a model and answer over HTTP
    ├── chat    talk to a server, or to a model without one
    ├── demo    see what prefix caching saves, measured here
    ├── plan    compute K/V memory
    ├── simulate  replay recorded traffic through the cache's eviction policies
    ├── cache   see, check and tidy what the disk tier has kept
    ├── cost    what tokens cost, and from which reuse on caching pays
    ├── keys    make, list and revoke API keys
    ├── usage   see tokens, cached shares and latencies of what was served; delete what is old
    └── pull    fetch a model

What goes wrong on purpose (`OstinatoError`) is printed as one message with exit status 2, as
wrong flags are. Each command imports what it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ostinato.cli import cache, chat, console, cost, demo, keys, plan, pull, serve, simulate, usage
from ostinato.errors import OstinatoError

EPILOG = """
**First steps**

- Fetch the default model (93 MB): `ostinato pull smollm2-135m-instruct`
- Serve it on http://127.0.0.1:8000: `ostinato serve`
- Talk to it, from a second terminal: `ostinato chat`
- See what prefix caching saves: `ostinato demo`

`ostinato COMMAND --help` explains each command, with examples.
"""

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class _Commands(TyperGroup):
    """Turns the errors that we raise on purpose into one message and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OstinatoError as error:
            console.print_error(str(error))
            raise typer.Exit(EXIT_ERROR) from error
        except KeyboardInterrupt as interrupt:
            console.messages().print("Interrupted.")
            raise typer.Exit(EXIT_INTERRUPTED) from interrupt


app = typer.Typer(
    name="ostinato",
    cls=_Commands,
    epilog=EPILOG,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("serve", epilog=serve.EPILOG)(serve.serve)
app.command("chat", epilog=chat.EPILOG)(chat.chat)
app.command("demo", epilog=demo.EPILOG)(demo.demo)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("simulate", epilog=simulate.EPILOG)(simulate.simulate)
app.command("pull", epilog=pull.EPILOG)(pull.pull)
app.add_typer(
    cache.app,
    name="cache",
    help="See, check and tidy what the disk tier has kept.",
    epilog=cache.EPILOG,
)
app.add_typer(
    cost.app,
    name="cost",
    help="What tokens cost, and from which reuse on caching pays.",
    epilog=cost.EPILOG,
)
app.add_typer(usage.app, name="usage", epilog=usage.EPILOG)
app.add_typer(keys.app, name="keys", help="Make, list and revoke API keys.", epilog=keys.EPILOG)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ostinato {version('ostinato')}")
        raise typer.Exit


@app.callback()
def ostinato(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """An LLM server in which caching is the product.

    It keeps the K/V of what it has computed and does not compute the same prompt prefix twice; every
    answer says how many of its prompt tokens were reused.
    """


def main() -> None:
    """Entry point of the ``ostinato`` command."""
    app()
