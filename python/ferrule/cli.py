"""The command line: parses arguments, runs a command, and turns errors into messages and an exit
status.

Exit status: 0 success, 1 a problem, printed with its path, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

import msgspec
import uvloop

from ferrule import __version__
from ferrule.config import ConfigError, Flags, UsageError
from ferrule.dialects import DIALECTS
from ferrule.errors import Failure
from ferrule.telemetry.logs import LEVELS, set_up

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status. `argv`: without the program's name; None: the process's own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sim"]:  # has a parser of its own
        from ferrule import sim

        return sim.main(arguments[1:])
    options = _build_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        # Python flushes standard output once more at exit; that must not fail too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except ConfigError as error:
        print(error, file=sys.stderr)
    except Failure as failure:
        print(f"ferrule: {failure.message}", file=sys.stderr)
    except OSError as error:
        print(f"ferrule: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ferrule",
        description="Anthropic's Messages API in front of vLLM, SGLang and llama.cpp.",
    )
    parser.add_argument("--version", action="version", version=f"ferrule {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the proxy")
    _add_serving_flags(serve)
    serve.add_argument("--log-level", choices=LEVELS, default="info")
    serve.set_defaults(run=_serve)
    demo = commands.add_parser(
        "demo", help="run the proxy with three simulated backends, and stream one message"
    )
    demo.add_argument("--once", action="store_true", help="stop after the message")
    demo.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT")
    demo.add_argument("--admin", default="127.0.0.1:9090", metavar="HOST:PORT")
    demo.set_defaults(run=_demo)
    commands.add_parser("sim", help="run a simulated vLLM (ferrule sim --help)")
    check = commands.add_parser(
        "check", help="check the config and the backends, and report what the proxy will do"
    )
    _add_serving_flags(check)
    check.add_argument(
        "--probe",
        action="store_true",
        help="also have each model generate three tokens, to test usage, reasoning and budgets",
    )
    check.set_defaults(run=_check)
    keys = commands.add_parser("keys", help="manage clients' keys").add_subparsers(
        required=True, metavar="new"
    )
    new = keys.add_parser("new", help="print a new key, and its entry for the keys file")
    new.add_argument("name", metavar="NAME")
    new.set_defaults(run=_new_key)
    count = commands.add_parser("count", help="count the tokens of a Messages body")
    count.add_argument(
        "--model",
        metavar="M",
        help="count as for this model; default: the model that the body names",
    )
    count.add_argument(
        "--config", metavar="FILE", help="where the model's tokenizer is set; default: o200k_base"
    )
    count.add_argument("file", metavar="FILE", help="the JSON body; - for standard input")
    count.set_defaults(run=_count)
    return parser


def _add_serving_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML; see ferrule.example.yaml")
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="URL",
        help="a backend, instead of --config; repeatable",
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="127.0.0.1:8080 unless the file says otherwise"
    )
    parser.add_argument(
        "--admin", metavar="HOST:PORT", help="127.0.0.1:9090 unless the file says otherwise"
    )
    parser.add_argument("--workers", type=int, metavar="N")
    parser.add_argument("--dialect", choices=tuple(DIALECTS))


def _flags(options: argparse.Namespace) -> Flags:
    return Flags(
        backends=tuple(options.backend),
        listen=options.listen,
        admin=options.admin,
        workers=options.workers,
        dialect=options.dialect,
    )


def _serve(options: argparse.Namespace) -> int:
    from ferrule.admission.keys import KeyRing
    from ferrule.http.server import ParserMissing
    from ferrule.process.run_worker import serve_alone
    from ferrule.process.supervisor import Supervisor
    from ferrule.process.worker import WorkerSettings

    set_up(options.log_level)
    settings = WorkerSettings(_flags(options), options.config)
    configuration = settings.read()
    if configuration.auth.keys_file:
        # fails here once, rather than in every worker
        KeyRing.load(configuration.auth.keys_file)
    if not configuration.admin.is_loopback:
        log.warning(
            "admin on %s is not limited to this machine, and its metrics, status and page need no "
            "key",
            configuration.admin,
        )
    try:
        if configuration.workers > 1:
            return uvloop.run(Supervisor(settings, configuration, options.log_level).run())
        return uvloop.run(serve_alone(settings, configuration))
    except ParserMissing as error:
        print(f"ferrule: {error}", file=sys.stderr)
        return 1


def _demo(options: argparse.Namespace) -> int:
    from ferrule import demo

    return demo.run(options.once, options.listen, options.admin)


def _check(options: argparse.Namespace) -> int:
    from ferrule import check
    from ferrule.process.worker import WorkerSettings

    return uvloop.run(
        check.run(WorkerSettings(_flags(options), options.config).read(), probes=options.probe)
    )


def _new_key(options: argparse.Namespace) -> int:
    from ferrule.admission.keys import generate_key

    try:
        key, entry = generate_key(options.name)
    except ValueError as error:
        print(f"ferrule keys new: {options.name!r}: {error}", file=sys.stderr)
        return 2
    print(
        f"{key}\n\nThe key is shown only once. Its entry for the keys file:\n\nkeys:\n{entry}",
        end="",
    )
    return 0


def _count(options: argparse.Namespace) -> int:
    from ferrule import config
    from ferrule.backends.token_counter import tokenizer
    from ferrule.catalog import find_model
    from ferrule.messages import decode
    from ferrule.messages.count import text_of

    body = sys.stdin.buffer.read() if options.file == "-" else _read(options.file)
    request = decode(_add_model(body, options.model))
    name = "o200k_base"
    if options.config:
        model = find_model(config.load(options.config).models, options.model or request.model)
        if model is None:
            print(
                f"ferrule count: {options.config}: no model {options.model or request.model!r}",
                file=sys.stderr,
            )
            return 1
        name = model.tokenizer
    print(tokenizer(name).count(text_of(request)))
    return 0


def _add_model(body: bytes, model: str | None) -> bytes:
    """The body with `model`, if it names none. A body that is not a JSON object is left for
    `decode` to refuse."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return body
    if model is None or "model" in members:
        return body
    return msgspec.json.encode({"model": model, **members})


def _read(file: str) -> bytes:
    with open(file, "rb") as stream:
        return stream.read()
