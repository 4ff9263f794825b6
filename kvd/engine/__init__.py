"""Operations in, results and effects out: the log of one stage."""
