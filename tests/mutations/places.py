"""What can be mutated in a source text: small changes that a test should notice."""

import ast
import copy
from typing import NamedTuple

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
               ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
              ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
              ast.BitXor: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift}
WITHOUT_EFFECT = ("encoding", "strict", "frozen", "help", "metavar")
"""Keywords that guard against mistakes which the code does not make, or are texts."""


class Mutation(NamedTuple):
    """One change: what stands from (line, column) to (end_line, end_column) becomes `text`."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    what: str
    first: int
    """The function around it: its first line, and the last; the whole file where there is none."""
    last: int

    def apply(self, source):
        """The mutated source."""
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[:self.line - 1]) + lines[self.line - 1][:self.column]
        after = lines[self.end_line - 1][self.end_column:] + b"".join(lines[self.end_line:])
        return (before + self.text.encode() + after).decode()


def mutations(source):
    """All mutations of a source text, those that leave the text's meaning as it is left out."""
    walker = _Walker(len(source.splitlines()))
    walker.visit(ast.parse(source))
    return walker.made


class _Walker(ast.NodeVisitor):
    """Collects mutations; passes over type hints, texts, and what only a reader sees."""

    def __init__(self, lines):
        self.made, self._scope = [], (1, lines)

    # Where mutations are of no use ------------------------------------------------------------------------
    def visit_JoinedStr(self, node):
        """Texts; their positions are not those of the file before Python 3.12."""

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node):
        """An argument is a name and a hint."""

    def visit_If(self, node):
        """Mutate the condition, but for type checking and what a file does as a program."""
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "__name__ == '__main__'"):
            self._turned(node)

    def visit_Assign(self, node):
        if not any(isinstance(t, ast.Name) and (t.id == "__all__" or self._is_hint(node.value)) for t in node.targets):
            self.visit(node.value)

    @staticmethod
    def _is_hint(value):
        return isinstance(value, ast.Subscript) and ast.unparse(value.value) in ("Literal", "Callable", "tuple", "dict", "list")

    def _function(self, node):
        if node.name == "__repr__":
            return
        outside, self._scope = self._scope, (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno)
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)
        self._scope = outside

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node):
        outside, self._scope = self._scope, (node.lineno, node.end_lineno)
        self.generic_visit(node)
        self._scope = outside

    # What is mutated --------------------------------------------------------------------------------------
    def _add(self, node, text, what):
        self.made.append(Mutation(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text, what,
                                  *self._scope))

    def _changed(self, node, what, **fields):
        changed = copy.copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        self._add(node, f"({ast.unparse(changed)})", what)

    def _condition(self, node):
        self._add(node.test, f"(not ({ast.unparse(node.test)}))", "condition turned over")

    def _turned(self, node):
        self._condition(node)
        self.generic_visit(node)

    visit_While = visit_IfExp = _turned

    def visit_Compare(self, node):
        for k, op in enumerate(node.ops):
            replacement = COMPARISONS[type(op)]
            self._changed(node, f"{type(op).__name__} -> {replacement.__name__}",
                          ops=[*node.ops[:k], replacement(), *node.ops[k + 1:]])
        self.generic_visit(node)

    def visit_BinOp(self, node):
        """Another operator; a matrix product the other way round."""
        if isinstance(node.op, ast.MatMult):
            self._changed(node, "factors swapped", left=node.right, right=node.left)
        elif not (isinstance(node.op, ast.BitOr) and self._are_types(node)):
            replacement = ARITHMETIC[type(node.op)]
            self._changed(node, f"{type(node.op).__name__} -> {replacement.__name__}", op=replacement())
        self.generic_visit(node)

    @staticmethod
    def _are_types(node):
        return all(isinstance(side, ast.Name | ast.Attribute | ast.BinOp | ast.Subscript) and
                   (ast.unparse(side)[0].isupper() or ast.unparse(side) in ("int", "float", "str", "bool"))
                   for side in (node.left, node.right))

    def visit_BoolOp(self, node):
        replacement = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._changed(node, f"{type(node.op).__name__} -> {type(replacement).__name__}", op=replacement)
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not | ast.USub):
            self._add(node, f"({ast.unparse(node.operand)})", f"{type(node.op).__name__} dropped")
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            self._add(node, str(not node.value), "truth value turned over")
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1), "number + 1")
            self._add(node, f"({node.value - 1})", "number - 1")
        elif isinstance(node.value, float):
            self._add(node, repr(node.value * 2 or 1.0), "number doubled")

    def visit_Slice(self, node):
        for bound in filter(None, (node.lower, node.upper)):
            if not isinstance(bound, ast.Constant):
                self._add(bound, f"({ast.unparse(bound)} + 1)", "bound + 1")
        self.generic_visit(node)

    def visit_Call(self, node):
        """Two arguments in each other's place; a keyword left out."""
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if len(plain) == len(node.args) == 2 and ast.dump(node.args[0]) != ast.dump(node.args[1]) \
                and ast.unparse(node.func) not in ("isinstance", "getattr", "setattr", "max", "min", "np.maximum", "np.minimum"):
            self._changed(node, "arguments swapped", args=node.args[::-1])
        for k, keyword in enumerate(node.keywords):
            if keyword.arg and keyword.arg not in WITHOUT_EFFECT:
                self._changed(node, f"{keyword.arg} left out", keywords=[*node.keywords[:k], *node.keywords[k + 1:]])
        self.generic_visit(node)

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):
            self._add(node, "pass", "statement dropped")
            self.generic_visit(node)

    def visit_AugAssign(self, node):
        self._add(node, "pass", "statement dropped")
        self.visit(node.value)

    def visit_Raise(self, node):
        """Drop an error; its text is not mutated."""
        self._add(node, "pass", "error dropped")

    def visit_Return(self, node):
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, "return None", "returns None")
        self.generic_visit(node)

    def visit_Continue(self, node):
        self._add(node, "break", "continue -> break")

    def visit_Break(self, node):
        self._add(node, "continue", "break -> continue")
