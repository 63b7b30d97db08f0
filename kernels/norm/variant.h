// Which norm of rows the text of this folder is, and of what.
//
// Macros: CENTRED, 1 for layer norm (Ba, Kiros, Hinton 2016, eq. 3), 0 for RMS norm (Zhang, Sennrich 2019, eq. 4), which
// neither subtracts the mean nor has a bias; RESIDUAL, 1 where the rows are sums of two arrays.
#pragma once

#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif

// Whether an activation may follow.
#define HAS_ACTIVATION (CENTRED && !RESIDUAL)

// What is kept of a row for its gradient: mean, residue of the mean and rstd, or rstd alone. The last one is rstd.
#define STATS (CENTRED ? 3 : 1)
