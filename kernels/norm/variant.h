// The variant of the norm of rows, by two macros.
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

// 1 if an activation may follow.
#define HAS_ACTIVATION (CENTRED && !RESIDUAL)

// The numbers kept of a row for its gradient: mean, residue of the mean and rstd, or rstd alone. The last one is rstd.
#define STATS (CENTRED ? 3 : 1)
