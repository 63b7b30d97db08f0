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
        """Visit the value of an annotated assignment, not its hint."""
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node):
        """An argument is a name and a hint."""

    def visit_If(self, node):
        """Mutate the condition, but for type checking and what a file does as a program."""
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "__name__ == '__main__'"):
            self._condition(node)
            self.generic_visit(node)

    def visit_Assign(self, node):
        """Visit what is assigned, but for lists of exported names and hints that have a name."""
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
        """A lambda is a function of its own."""
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

    def visit_While(self, node):
        """Mutate the condition."""
        self._condition(node)
        self.generic_visit(node)

    def visit_IfExp(self, node):
        """Turn over a conditional expression."""
        self._condition(node)
        self.generic_visit(node)

    def visit_Compare(self, node):
        """Another comparison, at each place of a chain."""
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
        """`and` for `or`, and the other way round."""
        replacement = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._changed(node, f"{type(node.op).__name__} -> {type(replacement).__name__}", op=replacement)
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        """Drop `not` and the minus sign."""
        if isinstance(node.op, ast.Not | ast.USub):
            self._add(node, f"({ast.unparse(node.operand)})", f"{type(node.op).__name__} dropped")
        self.generic_visit(node)

    def visit_Constant(self, node):
        """The next number, or the other truth value."""
        if isinstance(node.value, bool):
            self._add(node, str(not node.value), "truth value turned over")
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1), "number + 1")
            self._add(node, f"({node.value - 1})", "number - 1")
        elif isinstance(node.value, float):
            self._add(node, repr(node.value * 2 or 1.0), "number doubled")

    def visit_Slice(self, node):
        """A slice without a bound, or off by one."""
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
        """Drop a statement."""
        if not isinstance(node.value, ast.Constant):
            self._add(node, "pass", "statement dropped")
            self.generic_visit(node)

    def visit_AugAssign(self, node):
        """Drop an assignment in place."""
        self._add(node, "pass", "statement dropped")
        self.visit(node.value)

    def visit_Raise(self, node):
        """Drop an error; its text is not mutated."""
        self._add(node, "pass", "error dropped")

    def visit_Return(self, node):
        """Return nothing."""
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, "return None", "returns None")
        self.generic_visit(node)

    def visit_Continue(self, node):
        """End a loop in place of a turn."""
        self._add(node, "break", "continue -> break")

    def visit_Break(self, node):
        """Go on in place of an end."""
        self._add(node, "continue", "break -> continue")
