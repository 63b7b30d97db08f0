"""The checks that duoln's own tests use, for authors of operators, rules and tasks.

    gradcheck(fn, *args)                   gradients against central differences
    check_op(fn, inputs, reference, ...)   values and gradients of an operator on one backend
    check_rule(op, rule, inputs, ...)      a fast rule against the composed one, and that it keeps its promises
    check_kernel(op)                       its kernels without the hardware: accesses, races, values
    check_task(task)                       everything that training, resuming and reporting need of a task
    check_corpus(task, cfg, folder)        that damaged files of a corpus are refused
"""

from duoln.core.public_names import only_public
from duoln.testing.closeness import check_close, check_error
from duoln.testing.gradients import gradcheck
from duoln.testing.kernels import check_kernel
from duoln.testing.operators import check_op, check_rule
from duoln.testing.tasks import check_corpus, check_task

__all__ = ["check_close", "check_corpus", "check_error", "check_kernel", "check_op", "check_rule", "check_task",
           "gradcheck"]
only_public(globals())
