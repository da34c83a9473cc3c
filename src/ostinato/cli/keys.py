"""``ostinato keys``: make, list and revoke the API keys of a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ostinato.cli import console

if TYPE_CHECKING:
    from ostinato.config import OstinatoConfig

EPILOG = """
**Examples**

- A key for a tenant: `ostinato keys add acme`
- A key for the scraper of /metrics: `ostinato keys add prometheus --role monitor`
- What there is: `ostinato keys ls`, and away with one: `ostinato keys revoke k_5f0c2177`

A running server sees the change within a second; answers that are being written are finished.
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

TenantArgument = Annotated[
    str,
    typer.Argument(
        help="Whose key it is. Keys of one tenant share a cache, budgets and a place in the queue.",
    ),
]
RoleFlag = Annotated[
    Literal["tenant", "monitor"],
    typer.Option(help="tenant may use /v1; monitor may read /metrics and /health, nothing else."),
]
FileFlag = Annotated[
    Path | None,
    typer.Option(
        "--api-keys",
        help="File of keys. Default: api-keys.jsonl in the data folder, which `serve` reads too.",
        metavar="FILE",
        show_default=False,
    ),
]
DataDirFlag = Annotated[
    Path | None,
    typer.Option(
        help="Data folder. Default: the platform's usual place.",
        metavar="FOLDER",
        show_default=False,
    ),
]


@app.command("add")
def add(
    tenant: TenantArgument,
    role: RoleFlag = "tenant",
    api_keys: FileFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Make a key and print it, once: only a digest of it is kept."""
    from ostinato.api.key_file import KeyRole, add_key
    from ostinato.cache.types import tenant_id
    from ostinato.clock import SystemClock

    path = _path(api_keys, data_dir)
    record, key = add_key(path, tenant_id(tenant), KeyRole(role), SystemClock())
    typer.echo(key)
    console.messages().print(
        f"This is the only time that the key is shown. It is {record.key_id} in"
        f" {console.escape(str(path))}."
    )


@app.command("ls")
def ls(api_keys: FileFlag = None, data_dir: DataDirFlag = None) -> None:
    """List the keys: id, tenant, role, when it was made."""
    from ostinato.api.key_file import read_keys

    path = _path(api_keys, data_dir)
    records = read_keys(path).records if path.exists() else ()
    width = max((len(record.tenant) for record in records), default=0)
    for record in records:
        typer.echo(f"{record.key_id}  {record.tenant:<{width}}  {record.role:<7}  {record.created}")
    if not records:
        console.messages().print(f"{console.escape(str(path))} holds no keys.")


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Its id, as `ostinato keys ls` shows it.")],
    api_keys: FileFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Make a key invalid, for good."""
    from ostinato.api.key_file import revoke_key

    record = revoke_key(_path(api_keys, data_dir), key_id)
    typer.echo(f"Revoked {record.key_id} of {record.tenant}")


def key_file_of(config: OstinatoConfig) -> Path:
    """Where the keys of this configuration are, or would be."""
    from ostinato.api.key_file import DEFAULT_FILE_NAME

    return config.tenants.api_keys_file or config.data_dir / DEFAULT_FILE_NAME


def _path(api_keys: Path | None, data_dir: Path | None) -> Path:
    from ostinato.config import load_config

    if api_keys is not None:
        return api_keys
    return key_file_of(load_config({} if data_dir is None else {"data_dir": data_dir}))
