"""See in a source that it changes what all requests of a process have together: a file of one name, a seed, a setting."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType
from typing import Any

from slotwise.worker.familiar.sources import is_authors, name_of_call

SEED, FILES, SETTINGS = "random.seed", "files.of_one_name", "settings.of_a_library"
GENERATOR = "random.generator"  # of one seed: in `inference` each row gets other numbers of it than alone
TOGETHER = frozenset((SEED, FILES, SETTINGS, "os.environ"))  # each request for itself, whoever reads these
SEEDS = "seed manual_seed manual_seed_all set_seed seed_everything enable_full_determinism"
WRITES = """write_bytes write_text imwrite imsave save savez savez_compressed savetxt save_file save_pretrained to_csv
    to_parquet to_json to_excel tofile copyfile copy move write export touch makedirs urlretrieve writeframes"""
STARTS = "run call check_call check_output Popen system"
GENERATES = "default_rng RandomState Random Generator SeedSequence PRNGKey"
SETS = """set_default_dtype set_default_device set_default_tensor_type set_option setlocale set_printoptions tzset
    setrecursionlimit use_deterministic_algorithms set_float32_matmul_precision set_flush_denormal set_global_dtype putenv
    seterr seterrcall setbufsize getcontext setcontext"""
JOINS = "join Path PurePath str abspath expanduser gettempdir getcwd joinpath with_suffix fspath"
SEEDING, WRITING, GENERATING = frozenset(SEEDS.split()), frozenset(WRITES.split()), frozenset(GENERATES.split())
SETTING = frozenset(SETS.split())
STARTING, JOINING = frozenset(STARTS.split()), frozenset(JOINS.split())


def together(node: ast.Call, called: str, value: Callable[[ast.AST], Any], given: Callable[[str], list[ast.AST]]) -> str:
    """Which of TOGETHER, or GENERATOR, a call changes; "" of none.

    value: what an expression is now; given: what a local name is set to.
    """
    func = node.func
    if called in SEEDING:
        top = func
        while isinstance(top, ast.Attribute):
            top = top.value
        if isinstance(top, ast.Call):  # get_accelerator().manual_seed(0), but not Generator().manual_seed(0)
            return GENERATOR if name_of_call(top.func) in GENERATING else SEED
        return SEED if isinstance(top, ast.Name) and not given(top.id) else GENERATOR
    if (called in GENERATING and node.args) or any(one.arg in ("seed", "random_state") for one in node.keywords):
        return "" if is_authors(value(func)) else GENERATOR
    if called in SETTING:
        return SETTINGS
    if called in STARTING:
        texts = [part.value for arg in node.args for part in ast.walk(arg) if isinstance(part, ast.Constant)]
        return FILES if any(isinstance(text, str) and "/tmp/" in text for text in texts) else ""
    paths = [*node.args[:2], *(one.value for one in node.keywords if one.arg in ("file", "path", "filename", "fname"))]
    if called in ("write_bytes", "write_text", "open", "touch") and isinstance(func, ast.Attribute):
        paths = [func.value, *paths]
    elif called not in WRITING and called != "open":
        return ""
    if called == "open" and not any(map(_writes, [*node.args, *(one.value for one in node.keywords)])):
        return ""
    return FILES if any(_is_fixed(path, value, given, set()) for path in paths) else ""


def sets(target: ast.AST, given: ast.AST, value: Callable[[ast.AST], Any]) -> bool:
    """Whether something in a library's module is set to what is not always the same. value: what an expression is now."""
    top = target
    while isinstance(top, ast.Attribute):
        top = top.value
    module = value(top) if top is not target else None
    return isinstance(module, ModuleType) and not is_authors(module) and not isinstance(given, ast.Constant)


def _writes(mode: ast.AST) -> bool:
    text = mode.value if isinstance(mode, ast.Constant) else None
    return isinstance(text, str) and 0 < len(text) < 4 and set(text) <= set("rwaxbt+") and bool(set(text) & set("wax+"))


def _is_fixed(
    node: ast.AST, value: Callable[[ast.AST], Any], given: Callable[[str], list[ast.AST]], seen: set[str], top: bool = True
) -> bool:
    """Whether this is a file's name that is always the same."""
    match node:
        case ast.Constant(value=text):
            return isinstance(text, str | int) and (not top or (isinstance(text, str) and ("/" in text or "." in text)))
        case ast.Name(id=name) if set_to := given(name):
            known = name in seen
            seen.add(name)
            return known or all(_is_fixed(one, value, given, seen, top) for one in set_to)
        case ast.JoinedStr(values=parts):
            return all(_is_fixed(part, value, given, seen, False) for part in parts)
        case ast.FormattedValue(value=part):
            return _is_fixed(part, value, given, seen, False)
        case ast.BinOp(left=one, right=other):
            return all(_is_fixed(part, value, given, seen, False) for part in (one, other))
        case ast.Call(func=ast.Attribute(value=of, attr=attr), args=args) if attr in JOINING:
            paths = (
                args if isinstance(of, ast.Name | ast.Attribute) and not isinstance(value(of), str | PurePath) else [of, *args]
            )
            return all(_is_fixed(part, value, given, seen, False) for part in paths)
        case ast.Call(func=ast.Name(id=name), args=args) if name in JOINING:
            return all(_is_fixed(part, value, given, seen, False) for part in args)
        case ast.Name() | ast.Attribute():
            return isinstance(value(node), str | PurePath)
    return False
