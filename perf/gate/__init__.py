"""Two commits on one machine, row by row: is the second slower, and may that be believed?

evidence -> statistics -> verdicts -> report: measuring, judging and showing share plain data and nothing else.
"""
