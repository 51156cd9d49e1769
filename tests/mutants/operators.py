"""One-line changes that a test suite should see: which there are in a source text, and the text with one of them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
COMPARISON = {
    **{ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}
ARITHMETIC = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*"},
    **{ast.BitAnd: "|", ast.BitOr: "&"},
}
FUNCTIONS = {
    **{"min": "max", "max": "min", "sum": "mean", "mean": "sum", "any": "all", "all": "any", "floor": "ceil"},
    **{"amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax"},
    **{
        "argmax": "argmin",
        "cumsum": "cumprod",
        "ceil": "floor",
        "exp": "expm1",
        "log": "log1p",
        "union": "intersection",
    },
}
BUILT_IN_SUM = {"sum": "max"}
"""Python has no ``mean``."""

SPOKEN = {"print", "warn", "warning", "info", "debug", "error", "log_message"}
"""Calls whose arguments are prose; so are those of a progress bar, ``bar.update(...)``."""

UNSEEN = {"strict", "encoding", "device", "indent", "desc", "unit", "leave", "total"}
"""Keywords whose absence shows only where other code is broken (``zip``), on a machine of another kind, in the white
space of a JSON file, or in the words of a progress bar."""

LAYOUT = {"min_width", "scale", "height", "lines", "padding", "size", "info", "css_template", "show_progress_on"}
"""Keywords of Gradio's components (``gr.Row(...)``) by which a page only looks otherwise."""


@dataclass(frozen=True)
class Mutant:
    """A change of one place: ``before`` at (line, column) becomes ``after``."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    after: str
    before: str
    statement: int = 0
    """First line of the innermost statement."""
    called: bool = True
    """Whether the place is run by calls, and not once for all: when the module is imported, or a result is cached."""

    def text(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def change(self) -> str:
        return f"{' '.join(self.before.split())} -> {' '.join(self.after.split()) or 'nothing'}"


def mutants(file: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    return sorted(Sites(file, source).found, key=lambda one: (one.start, one.end, one.kind, one.after))


class Sites(ast.NodeVisitor):
    """Walks a module and lists its mutants; prose, annotations and decorators are left out."""

    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.bytes = source.encode()
        self.lines = self.bytes.split(b"\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.found: list[Mutant] = []
        self.kind = ""
        """What constants are called here: defaults are a class of their own."""
        self.statement, self.depth = 0, 0
        self.visit(ast.parse(source))

    def add(self, kind: str, node: ast.expr | ast.stmt, after: str, end: ast.expr | None = None) -> None:
        self.append(kind, node.lineno, self.at(node), self.at(end or node, last=True), after)

    def append(self, kind: str, line: int, start: int, end: int, after: str) -> None:
        before = self.bytes[start:end].decode()
        if before != after:
            place = (self.statement, self.depth > 0)
            self.found.append(Mutant(self.file, line, kind, start, end, after, before, *place))

    def at(self, node: ast.AST, last: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if last else (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return self.starts[line - 1] + column

    def source(self, node: ast.AST) -> str:
        """The node's text; in brackets where it was or may need to be."""
        text = self.bytes[self.at(node) : self.at(node, last=True)].decode()
        simple = ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript
        return text if isinstance(node, simple) else f"({text})"

    # Statements

    def visit(self, node: ast.AST) -> None:
        outer = self.statement
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        super().visit(node)
        self.statement = outer

    def visit_Module(self, node: ast.Module) -> None:
        self.body(node.body)

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            prose = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not prose:
                self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self.default(statement.value)
            else:
                self.body([statement])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "tiny":
            return  # it makes a random model for tests, where any size and seed will do
        for value in [*node.args.defaults, *node.args.kw_defaults]:
            if value is not None:
                self.default(value)
        outer = self.depth
        self.depth += not any("cache" in ast.unparse(one) for one in node.decorator_list)
        self.body(node.body)
        self.depth = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.depth += 1
        self.visit(node.body)
        self.depth -= 1

    def default(self, value: ast.expr) -> None:
        self.kind = "default"
        self.visit(value)
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
            self.add("default", value, repr(value.value + "x"))
        if isinstance(value, ast.Constant) and value.value is None:
            self.add("default", value, "0")
        self.kind = ""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and ast.unparse(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = ast.unparse(node.targets[0])
        if target.startswith("__") or (target[:1].isupper() and not target.isupper()):
            return  # dunder names and aliases of types
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("TypeVar", "ParamSpec"):
            return
        if not isinstance(node.targets[0], ast.Name | ast.Tuple):
            self.add("statement", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", node, "pass")
        operator = ARITHMETIC.get(type(node.op))
        if operator:
            text = f"{self.source(node.target)} {operator}= {self.source(node.value)}"
            self.add("arithmetic", node, text)
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not self.spoken(node.value):
            self.add("statement", node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            # ``return False`` becomes ``return True``, a change of a constant; callers cannot tell None from False.
            if not (isinstance(node.value, ast.Constant) and (node.value.value is None or node.value.value is False)):
                self.add("return", node, "return None")
            self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self.add("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add("loop", node, "break")

    def visit_Raise(self, node: ast.Raise) -> None:
        """Texts of errors are prose; the condition above is not."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion says what holds anyway."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test) or "__name__" in ast.unparse(node.test):
            return
        self.condition(node.test)
        self.visit(node.test)
        self.body(node.body)
        self.body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.body(node.body)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add("condition", test, "True")
        self.generic_visit(node)

    def condition(self, test: ast.expr) -> None:
        self.add("condition", test, "True")
        self.add("condition", test, "False")

    # Expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = self.source(node.left), self.source(node.comparators[0])
            for kind, table in (("boundary", BOUNDARY), ("comparison", COMPARISON)):
                if type(node.ops[0]) in table:
                    self.add(kind, node, f"{left} {table[type(node.ops[0])]} {right}")
        else:
            parts = [node.left, *node.comparators]
            for i, operator in enumerate(node.ops):
                if type(operator) in BOUNDARY:
                    between = f"{self.source(parts[i])} {BOUNDARY[type(operator)]} {self.source(parts[i + 1])}"
                    self.add("boundary", parts[i], between, end=parts[i + 1])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and isinstance(getattr(node.left, "value", ""), str)
        operator = ARITHMETIC.get(type(node.op))
        if operator and not text:
            after = f"{self.source(node.left)} {operator} {self.source(node.right)}"
            tight = isinstance(node.op, ast.Pow | ast.BitAnd | ast.BitOr)
            self.add("arithmetic", node, f"({after})" if tight else after)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.UAdd):
            self.add("logic" if isinstance(node.op, ast.Not) else "arithmetic", node, self.source(node.operand))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " and " if isinstance(node.op, ast.And) else " or "
        for dropped in range(len(node.values)):
            rest = [self.source(value) for i, value in enumerate(node.values) if i != dropped]
            self.add("logic", node, word.join(rest))
        self.add("logic", node, (" or " if word == " and " else " and ").join(map(self.source, node.values)))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        kind, value = self.kind or "constant", node.value
        if isinstance(value, bool):
            self.add(kind, node, str(not value))
        elif isinstance(value, int):
            self.add(kind, node, str(value + 1))
        elif isinstance(value, float):
            self.add(kind, node, repr(2 * value) if value else "1.0")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Prose."""

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None:
                self.add("slice", bound, "")
                self.visit(bound)

    def visit_Call(self, node: ast.Call) -> None:
        if self.spoken(node):
            return
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        table = FUNCTIONS if isinstance(node.func, ast.Attribute) else {**FUNCTIONS, **BUILT_IN_SUM}
        if name in table and not (name in ("log", "exp") and isinstance(node.func, ast.Name)):
            before = self.bytes[self.at(node.func) : self.at(node.func, last=True)].decode()
            self.add("function", node.func, before.removesuffix(name) + table[name])
        for keyword in node.keywords:
            if keyword.arg in UNSEEN or (keyword.arg in LAYOUT and self.base(node) == "gr"):
                continue
            if keyword.arg is not None:
                self.dropped(node, keyword)
            self.visit(keyword.value)
        self.visit(node.func)
        for value in node.args:
            self.visit(value)

    def dropped(self, call: ast.Call, keyword: ast.keyword) -> None:
        """The call without the keyword and the comma behind it."""
        start, stop = self.at(keyword), self.at(keyword, last=True)
        behind = self.bytes[stop : self.at(call, last=True)]
        if behind.lstrip().startswith(b","):
            stop += behind.index(b",") + 1
        self.append("keyword", keyword.lineno, start, stop, "")

    @classmethod
    def spoken(cls, node: ast.Call) -> bool:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in SPOKEN or cls.base(node) == "bar"

    @staticmethod
    def base(node: ast.Call) -> str:
        """``a`` of a call ``a.b(...)``."""
        return getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
