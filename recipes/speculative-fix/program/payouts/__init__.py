"""Pays sellers their share of what buyers pay: amounts, shares, postings."""
