"""All mutants, in the order in which they are listed."""

from tests.mutation import book_rules, cells, operation_rules, rank_rules, redo_rules
from tests.mutation.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *(case.mutant for case in cells.CASES),
    *(rule.mutant for rule in book_rules.RULES),
    *(rule.mutant for rule in operation_rules.RULES),
    *(rule.mutant for rule in rank_rules.RULES),
    *(rule.mutant for rule in redo_rules.RULES),
)
