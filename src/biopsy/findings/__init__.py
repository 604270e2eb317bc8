"""The findings of a command as plain values of bounded size, and their forms: report, page, issue and bundle."""
