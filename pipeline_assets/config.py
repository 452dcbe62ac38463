"""Read the settings of a process: `tidemark.toml`, then `TIDEMARK_*` variables over it; and find its Dagster home."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError as UnreadableVariableError

from pipeline_assets.domain.errors import SettingsError, UsageError
from pipeline_assets.domain.machine import shared_file_system
from pipeline_assets.domain.masking import EXPORT_CREDENTIALS, URL_SETTINGS, holds_secret, remember
from pipeline_assets.domain.settings import ENV_PREFIX, PROJECT_ROOT, Settings, is_clone, require_cluster_settings
from pipeline_assets.native import VARIABLE as NATIVE_VARIABLE

CONFIG_VARIABLE = "TIDEMARK_CONFIG"
CONFIG_NAME = "tidemark.toml"
INSTANCE_NAME = "dagster.yaml"
TEMPLATES = Path(__file__).parent / "deployment"
"""Files of a deployment, installed with the code; in a clone, links to its own."""
_TEST_PREFIX = "TIDEMARK_CRASH_"
"""Variables of failpoints, which are no settings (resources/failpoints.py)."""
_OF_A_SERVICE = re.compile(
    rf"{ENV_PREFIX}(?:[A-Z0-9_]+_)?(?:SERVICE_HOST=.*|SERVICE_PORT(?:_[A-Z0-9_]+)?=[0-9]+"
    r"|PORT=(?:tcp|udp|sctp)://.*|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?=.*)"
)
"""Variables that Kubernetes sets for a service whose name begins with `tidemark`."""
_FOLDERS, _DATABASES = ("landing_url", "warehouse_url"), ("catalog_url", "ledger_url", "golden_url")
_FILES = ("jars_dir", "health_report", "metrics_file")
_PLACES_WITH_DEFAULTS = (*_FOLDERS, "catalog_url", "health_report")
_UNTOLD = frozenset({*URL_SETTINGS, "spark_config", "notify_urls"})
_LIST = "tidemark.toml lists all settings"
_SIGNING = f"{ENV_PREFIX}NOTIFY_SECRET"
"""The key that signs notices is no setting: it comes only from the environment."""


def load_settings(**overrides: Any) -> Settings:
    """Read settings from `$TIDEMARK_CONFIG`, else `./tidemark.toml`, else the clone's; the environment wins.

    Relative paths in the file are relative to it, those in variables to the working directory. Raises SettingsError.
    """
    _refuse_unknown_variables()
    path = _config_path()
    given: dict[str, Any] = {}
    if path is not None:
        defaults = {name: Settings.model_fields[name].default for name in _PLACES_WITH_DEFAULTS}
        given = {key: _absolute(key, value, path.parent) for key, value in (defaults | _read_toml(path)).items()}
    values = given | overrides
    remember(values)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _readable(error, path) from None
    except (UnreadableVariableError, RecursionError) as error:
        raise _unreadable(error) from None
    for name in filter(lambda name: holds_secret(name, given[name]), given):
        reason = "holds a secret, which everybody knows who reads the file or its history"
        hint = f"Take it out and set {ENV_PREFIX}{name.upper()}; if others could read the file, make the secret worthless too"
        raise SettingsError(f"{path}: {name}", reason, hint)
    here = {key: _absolute(key, getattr(settings, key), Path.cwd()) for key in (*_FOLDERS, *_DATABASES, *_FILES)}
    settings = settings.model_copy(update=here)
    require_cluster_settings(settings)
    _require_one_kernel(settings)
    return settings


def _require_one_kernel(settings: Settings) -> None:
    """Refuse SQLite where a second kernel may open the file: its write-ahead log rests on shared memory."""
    for url in (settings.catalog_url, settings.ledger_database_url):
        path = Path(url.removeprefix("sqlite:///").partition("?")[0])
        kind = shared_file_system(path) if url.startswith("sqlite:///") else None
        if kind is not None and kind not in settings.sqlite_on_shared_disk:
            reason = (
                f"lies on a file system that machines may share ({kind}), where SQLite loses what two of them write"
            )
            setting = f"{ENV_PREFIX}SQLITE_ON_SHARED_DISK={kind}"
            hint = f"Use PostgreSQL, or a local disk; where no other machine ever opens the file, set {setting}"
            raise SettingsError(str(path), reason, hint)


def notify_secret() -> str | None:
    """The key that signs notices; None leaves them unsigned."""
    return os.environ.get(_SIGNING) or None


def named_value(name: str) -> Any:
    """One value of the environment or the file, else None, for use before all settings can be read."""
    given = os.environ.get(f"{ENV_PREFIX}{name.upper()}")
    if given is not None:
        return given
    path = _config_path()
    return _read_toml(path).get(name) if path is not None else None


def _config_path() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(named).resolve()
        if not path.is_file():
            raise SettingsError(CONFIG_VARIABLE, f"there is no file {named}", "Correct the path or unset it")
        return path
    here, of_clone = Path.cwd() / CONFIG_NAME, PROJECT_ROOT / CONFIG_NAME
    if here.is_file():
        return here.resolve()
    return of_clone.resolve() if of_clone.is_file() and is_clone() else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(str(path), f"is not valid TOML ({error})", "Correct the line it names") from None


def _refuse_unknown_variables() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    known |= {CONFIG_VARIABLE, _SIGNING, NATIVE_VARIABLE}
    for name, value in os.environ.items():
        is_other = name.startswith(_TEST_PREFIX) or EXPORT_CREDENTIALS.fullmatch(name)
        is_other = is_other or _OF_A_SERVICE.fullmatch(f"{name}={value}")
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known and not is_other:
            raise SettingsError(name, "is not a setting", f"Correct its name or unset it; {_LIST}")


def _absolute(key: str, value: Any, base: Path) -> Any:
    if value is None:
        return None
    if key in _FOLDERS and "://" not in str(value):
        return str((base / Path(str(value)).expanduser()).resolve())
    if key in _FILES:
        return (base / value).resolve()
    if key in _DATABASES and str(value).startswith("sqlite:///"):
        return f"sqlite:///{(base / str(value).removeprefix('sqlite:///')).resolve()}"
    return value


def _readable(error: ValidationError, path: Path | None) -> SettingsError:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    where = f"{ENV_PREFIX}{name.upper()}" if f"{ENV_PREFIX}{name.upper()}" in os.environ else f"{path}: {name}"
    if first["type"] == "extra_forbidden":
        return SettingsError(where, "is not a setting", f"Correct its name or remove it; {_LIST}")
    reason = str(first["msg"]).removeprefix("Value error, ")
    # The value is omitted where it may hold a password or a key, even mistyped.
    got = "" if name in _UNTOLD else f" (got {first.get('input')!r})"
    return SettingsError(where, f"{reason}{got}", "Correct the value")


def _unreadable(error: UnreadableVariableError | RecursionError) -> SettingsError:
    variables = {name: os.environ.get(f"{ENV_PREFIX}{name.upper()}", "") for name in Settings.model_fields}
    # The error of JSON that nests too deeply names nothing.
    deepest = max(variables, key=lambda name: variables[name].count("[") + variables[name].count("{"))
    name = next((name for name in variables if f'"{name}"' in str(error)), deepest)
    return SettingsError(f"{ENV_PREFIX}{name.upper()}", "is not the JSON that this setting takes", "Correct the value")


def dagster_home() -> Path:
    """DAGSTER_HOME; default: the folder of `tidemark dev`. Raises UsageError if it or its configuration is gone."""
    own = Path.cwd() / INSTANCE_NAME
    if not os.environ.get("DAGSTER_HOME"):
        home = Path.cwd() / "data" / "dagster_home"
        home.parent.mkdir(exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        os.environ["DAGSTER_HOME"] = str(home)
        # A link, so that changes of the deployment's own file count.
        if own.is_file() and not os.path.lexists(home / INSTANCE_NAME):
            with suppress(FileExistsError):
                (home / INSTANCE_NAME).symlink_to(os.path.relpath(own, home))
    home = Path(os.environ["DAGSTER_HOME"])
    if not home.is_dir():
        raise UsageError("DAGSTER_HOME", f"there is no folder {home}", "Create it, or unset the variable")
    instance = home / INSTANCE_NAME
    if instance.is_symlink() and not instance.exists():
        # Dagster would use its own defaults, which do not limit how many loads start at once.
        raise UsageError(str(instance), "links to a file that is gone", "Restore that file, or remove the link")
    if not instance.exists():
        shutil.copyfile(TEMPLATES / INSTANCE_NAME, instance)
    return home
