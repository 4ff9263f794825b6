"""Write the table of public cases and what holds them: ``python -m tests.cases``."""

from tests.cases.table import TABLE, read_cases, read_holders, table

if __name__ == "__main__":
    TABLE.write_text(table(read_cases(), read_holders()), encoding="utf-8")
