"""`lmpoolctl submit`: one request, its answer streamed."""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ctl.render import to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import note, run, while_served
from lmpoold.client import PoolClient
from lmpoold.protocol.errors import Conflict, LMPoolError
from lmpoold.protocol.explanation import read_explanation
from lmpoold.protocol.messages import Output, Usage
from lmpoold.store.scripts import PoolStore

_OPTIONS = (
    click.option("--max-tokens", type=click.IntRange(1), help="Longest answer, in tokens."),
    click.option("--temperature", type=float, help="0, the default, takes the likeliest token."),
    click.option("--top-p", type=float, help="Draw from the likeliest tokens of this mass."),
    click.option("--top-k", type=click.IntRange(0), help="Draw from this many tokens; 0: all."),
    click.option("--min-p", type=float, help="Leave out tokens below this share of the best."),
    click.option("--seed", type=int, help="Makes drawing repeatable."),
    click.option("--stop", multiple=True, help="End the answer before this text; may be repeated."),
    click.option("--ignore-eos", is_flag=True, default=None, help="Go on past the model's end."),
    click.option("--logprobs", type=click.IntRange(0, 20), help="Alternatives a token, in --json."),
    click.option("--priority", type=int, help="Higher goes first and is preempted last."),
    click.option("--deadline-ms", type=click.IntRange(1), help="Give up after this long."),
    click.option("--salt", help="Share cached blocks with requests of the same salt only."),
    click.option("--id", "request_id", help="Name of the request; default: a fresh one."),
)


def request_options(command: Any) -> Any:
    """Add the fields of a request as options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(short_help="Send one request and stream its answer.")
@target_options
@click.argument("prompt", required=False)
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--chat", is_flag=True, help="Send the prompt as a user's message.")
@click.option("--system", help="Send it as a conversation with this system prompt.")
@request_options
@json_option
@click.option("--quiet", is_flag=True, help="No line on tokens and rank behind the answer.")
def submit(
    target: Target,
    prompt: str | None,
    file: Path | None,
    chat: bool,
    system: str | None,
    as_json: bool,
    quiet: bool,
    **fields: Any,
) -> None:
    """Send PROMPT, a file, or standard input (-), and print the answer as it comes.

    One line break at the end of a file or of standard input is not part of the prompt. Ctrl-C
    cancels the request in the pool. With --json: one line a step, then one on the whole.

    \b
    Example:  lmpoolctl submit "Why is the sky blue?" --max-tokens 64
              git diff | lmpoolctl submit --system "Sum up this change." -
    """
    text = read_prompt(prompt, file)
    sent = {name: value for name, value in fields.items() if value is not None and value != ()}
    if chat or system is not None:
        turns = [] if system is None else [{"role": "system", "content": system}]
        sent["messages"] = [*turns, {"role": "user", "content": text}]
    else:
        sent["prompt"] = text
    run(_submit(target, sent, as_json=as_json, quiet=quiet))


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from where the command line says it is.

    Raises: click.UsageError: from nowhere, from two places, or not UTF-8.
    """
    if prompt not in (None, "-") and file is not None:
        raise click.UsageError("give a prompt or --file, not both")
    if prompt is not None and prompt != "-":
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise click.UsageError("the prompt is not UTF-8")
        return prompt
    if file is not None:
        source, raw = str(file), file.read_bytes()
    elif prompt == "-" or not sys.stdin.isatty():
        source, raw = "standard input", sys.stdin.buffer.read()
    else:
        raise click.UsageError('give a prompt: lmpoolctl submit "Why is the sky blue?"')
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{source} is not UTF-8 (byte {error.start}); convert it first, "
            "e.g. with iconv -t UTF-8"
        ) from None
    if not text.strip("\r\n"):
        raise click.UsageError(f"{source} is empty: there is nothing to continue")
    return text.removesuffix("\n").removesuffix("\r")


async def _submit(target: Target, sent: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    given = sent.pop("request_id", None)
    async with open_store(target) as store:
        if given is not None and await store.redis.exists(store.keys.request(given)):
            raise Conflict(f"request {given} is known already; see `lmpoolctl explain {given}`")
        async with PoolClient(target.url(), target.pool) as client:
            request_id = await client.submit(request_id=given or uuid.uuid4().hex, **sent)
            if not quiet:
                await _warn_if_nobody_answers(store)
            last, text = await while_served(store, _printed(client, request_id, as_json=as_json))
        if last is None or last.usage is None:
            raise LMPoolError(f"the answer to {request_id} ended without its usage")
        explained = read_explanation(await store.explain(request_id))
    if as_json:
        print(to_json(_whole(request_id, text, last, explained.rank)), flush=True)
        return
    print(flush=True)
    if not quiet:
        note(f"{described(last.usage)}, {last.finish_reason}; rank {explained.rank}, {request_id}")


async def _printed(
    client: PoolClient, request_id: str, *, as_json: bool
) -> tuple[Output | None, str]:
    """Print a request's outputs as they come; returns the last one and the whole text."""
    last, parts = None, []
    async for output in client.stream(request_id):
        last = output
        parts.append(output.text)
        if as_json:
            print(to_json(step_json(output)), flush=True)
        else:
            print(output.text, end="", flush=True)
    return last, "".join(parts)


def step_json(output: Output) -> dict[str, Any]:
    """Return one step with numbers as numbers; what it does not have is left out."""
    step = {name: value for name, value in output._asdict().items() if value not in ("", None)}
    if output.logprobs:
        step["logprobs"] = json.loads(output.logprobs)
    if output.usage is not None:
        step["usage"] = asdict(output.usage)
    return {"text": "", **step}


def _whole(request_id: str, text: str, last: Output, rank: int | None) -> dict[str, Any]:
    usage = asdict(last.usage) if last.usage else None
    return {
        "id": request_id,
        "text": text,
        "finish_reason": last.finish_reason,
        "usage": usage,
        "rank": rank,
    }


async def _warn_if_nobody_answers(store: PoolStore) -> None:
    if not any(row.state == "up" for row in await store.ranks()):
        note("no rank is up: the request waits; see `lmpoolctl status`")


def described(usage: Usage) -> str:
    """Return the tokens of a request in words."""
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} output tokens"
    )
