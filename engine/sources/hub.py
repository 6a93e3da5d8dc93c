"""A model of the Hugging Face hub, fetched by `huggingface_hub` into the cache that it shares with other programs. The
library reads HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HUB_CACHE, and is imported where something is fetched. Large
files are fetched by its `http_get` under the name they will have there: what it fetches for a whole repository begins
again in every process."""

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from engine.files import is_gguf, put_in_place
from engine.processes import install_command
from engine.sources import download
from engine.sources.names import FetchFailed, RepositoryName, needed_files
from engine.sources.retention import exclusive

LIBRARY = "huggingface_hub"
if not os.environ.get("XDG_CACHE_HOME"):  # the library takes an empty one for the working folder
    os.environ.pop("XDG_CACHE_HOME", None)
Tell = Callable[[str], None]
_NOTHING_THERE = 416  # of a range behind the end of a file
_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


def fetch_repository(name: RepositoryName, tell: Tell, on_new: Callable[[], None]) -> Path:
    """The folder of a checkpoint, or a GGUF file (of several the first), in the shared cache. FetchFailed. tell: takes
    a sentence before anything is downloaded. on_new: called before the first file of a repository that is new there."""
    from huggingface_hub import constants  # noqa: PLC0415  # see above

    try:
        plan = newest(name)
    except download.ServerSilent as error:
        return _cached(name, str(error))
    if plan.missing:
        begun = [download.part_of(_blob(name, file)) for file in plan.missing]
        needed = plan.size - sum(part.stat().st_size for part in begun if part.is_file())
        download.check_room(name.text, needed, Path(constants.HF_HUB_CACHE))
        files = download.counted(len(plan.missing))
        tell(f"{name.text}: {files}, {download.megabytes(plan.size)}, from {plan.origin}")
        if not is_known(name.repository):
            on_new()
    try:
        return _fetch(name, plan, tell)
    except download.ServerSilent as error:
        raise FetchFailed(f"{name.text} was not fetched whole: {error}; what has come is kept") from error


def newest(name: RepositoryName) -> download.FetchPlan:
    """What the hub has now. FetchFailed for what it refuses and without the library, ServerSilent when it is silent."""
    if importlib.util.find_spec(LIBRARY) is None:
        raise FetchFailed(f"{name.text} is fetched from the hub, which needs: {install_command('compile')}")
    from huggingface_hub import HfApi, constants  # noqa: PLC0415

    if constants.is_offline_mode():
        raise download.ServerSilent(download.OFFLINE)
    with _errors_of_the_hub(name):
        found = HfApi().model_info(name.repository, files_metadata=True)
    there = [
        download.RemoteFile(
            file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None, blob=file.blob_id or ""
        )
        for file in found.siblings or ()
    ]
    return _planned(name, found.sha or "", there)


def is_known(repository: str) -> bool:
    """Whether the shared cache has anything of a repository."""
    return folder_of(repository).is_dir()


def folder_of(repository: str) -> Path:
    """Where the shared cache keeps a repository."""
    from huggingface_hub import constants  # noqa: PLC0415

    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"


def _planned(name: RepositoryName, commit: str, there: Sequence[download.RemoteFile]) -> download.FetchPlan:
    """What a name needs of a repository at one commit."""
    from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415

    by_name = {file.name: file for file in there}
    files = tuple(by_name[file] for file in needed_files(name.title, by_name, name.quant))
    found = [try_to_load_from_cache(name.repository, file.name, revision=commit) for file in files]
    missing = tuple(file for file, path in zip(files, found, strict=True) if not isinstance(path, str))
    return download.FetchPlan(constants.ENDPOINT, files, missing, folder_of(name.repository), commit)


def _fetch(name: RepositoryName, plan: download.FetchPlan, tell: Tell) -> Path:
    """Small files first: with them the library keeps the list of all, which tells what is missing without a network."""
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    if not sys.stderr.isatty():
        disable_progress_bars()
    large = [
        file
        for file in plan.missing
        if file.sha256 and _SHA256.fullmatch(file.sha256) and file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE
    ]
    patterns = [escape(file.name) for file in plan.files if file not in large]
    with _errors_of_the_hub(name):
        if patterns:
            snapshot_download(name.repository, allow_patterns=patterns)
        for file in large:
            _fetch_large(name, file, plan.commit, tell)
        folder = Path(snapshot_download(name.repository, allow_patterns=[escape(file.name) for file in plan.files]))
    for file in plan.missing:  # the library compares sizes alone
        if file not in large:
            _check(name, file, folder / file.name)
    return _model_in(folder, plan.files)


def _fetch_large(name: RepositoryName, file: download.RemoteFile, commit: str, tell: Tell) -> None:
    """Put a file where the library looks for it: under its hash, or where it cannot link, in the commit's folder."""
    from huggingface_hub import constants, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.file_download import are_symlinks_supported, http_get  # noqa: PLC0415
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415

    blob = _blob(name, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(blob.with_suffix(".lock"), lambda: tell(f"waiting: another process fetches {file.name}")):
        if not blob.exists():
            part = download.part_of(blob)
            with part.open("ab") as stream, _removed_if_useless(part):
                http_get(
                    hf_hub_url(name.repository, file.name, revision=commit),
                    stream,
                    resume_size=stream.tell(),
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
            _check(name, file, part)
            if not are_symlinks_supported(constants.HF_HUB_CACHE):
                blob = folder_of(name.repository) / "snapshots" / commit / file.name
                blob.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(part, blob)


def _blob(name: RepositoryName, file: download.RemoteFile) -> Path:
    return folder_of(name.repository) / "blobs" / str(file.sha256)


@contextmanager
def _removed_if_useless(part: Path) -> Iterator[None]:
    """A part file goes when the server has nothing to add to it and it is not whole."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        yield
    except OSError as error:  # the library's errors are some too
        refused = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if refused == _NOTHING_THERE or (refused is None and error.errno is None):
            part.unlink()
        raise


def _check(name: RepositoryName, file: download.RemoteFile, path: Path) -> None:
    """By the SHA-256 where there is one, else by git's name of the content, where the hub tells it as git does."""
    kind = "SHA-256" if file.sha256 else "SHA-1"
    wanted = file.sha256 or (file.blob if _SHA1.fullmatch(file.blob) else "")
    if wanted and wanted != (download.digest(path) if file.sha256 else download.git_blob(path)):
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise FetchFailed(f"{file.name} of {name.text} came with another {kind} than the hub's; try again")


def _cached(name: RepositoryName, reason: str) -> Path:
    """What was fetched before. FetchFailed when it is not there or not whole."""
    from huggingface_hub import get_cached_repo_tree  # noqa: PLC0415
    from huggingface_hub.errors import CachedRepoTreeNotFoundError  # noqa: PLC0415

    failed = f"{name.text} is no file or folder here, the cache "
    head = folder_of(name.repository) / "refs" / "main"
    if not head.is_file():
        raise FetchFailed(f"{failed}does not have it, and {reason}")
    commit = head.read_text("utf-8")
    folder = folder_of(name.repository) / "snapshots" / commit
    try:
        there = [download.RemoteFile(file.path, file.size) for file in get_cached_repo_tree(name.repository)]
    except CachedRepoTreeNotFoundError:  # by an older library
        there = [
            download.RemoteFile(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file()
        ]
    plan = _planned(name, commit, there)
    if plan.missing:
        lacking = ", ".join(file.name for file in plan.missing)
        raise FetchFailed(f"{failed}lacks {lacking} ({download.megabytes(plan.size)}), and {reason}")
    return _model_in(folder, plan.files)


def _model_in(folder: Path, needed: Sequence[download.RemoteFile]) -> Path:
    return folder / needed[0].name if is_gguf(needed[0].name) else folder


@contextmanager
def _errors_of_the_hub(name: RepositoryName) -> Iterator[None]:
    """FetchFailed with a sentence for what the hub says of the repository, ServerSilent when it does not answer."""
    from huggingface_hub import constants, errors  # noqa: PLC0415

    try:
        yield
    except errors.GatedRepoError as error:
        place = f"{constants.ENDPOINT}/{name.repository}"
        raise FetchFailed(
            f"{name.text} is gated: accept its terms at {place} and set HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FetchFailed(
            f"{name.text} is no file or folder here, and {constants.ENDPOINT} shows no model of that name: check it, "
            "or set HF_TOKEN if it is private"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise download.unreachable(constants.ENDPOINT, error.__cause__ or error) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise FetchFailed(f"{constants.ENDPOINT} refuses {name.text} ({status}): check HF_TOKEN") from error
        download.check_status(f"{name.text} at {constants.ENDPOINT}", status)
        raise _no_hub() from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # the root of the transport's errors
        raise download.unreachable(constants.ENDPOINT, error) from error
    except ValueError as error:  # no JSON, such as the page of a network that wants a login
        raise _no_hub() from error
    except OSError as error:
        raise FetchFailed(f"{name.text} was not fetched whole: {download.reason_of(error)}; try again") from error


def _no_hub() -> download.ServerSilent:
    from huggingface_hub import constants  # noqa: PLC0415

    return download.ServerSilent(
        f"{constants.ENDPOINT} does not answer as a hub: check HF_ENDPOINT, or log in to the network"
    )
