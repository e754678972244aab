/*
 * Gives a lab node a wrong clock: CLOCK_REALTIME is shifted by what stands in the file that SKEW_FILE names.
 *
 * A double for what this machine lacks, a clock for each node (time namespaces do not cover CLOCK_REALTIME). Loaded through
 * the node's own /etc/ld.so.preload. Absolute deadlines on CLOCK_REALTIME are shifted back, so that waits keep their length.
 * CLOCK_MONOTONIC is never touched; static programs see the true clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef SKEW_FILE
#error "SKEW_FILE names the file that holds the offset"
#endif

#define NS 1000000000LL

/* One signed 64-bit number of nanoseconds, mapped: writing it steps the clock of running processes too. */
static const volatile long long *skew;

__attribute__((constructor)) static void map_skew(void)
{
	void *map;
	int fd = open(SKEW_FILE, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	map = mmap(NULL, sizeof *skew, PROT_READ, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		skew = map;
	close(fd);
}

static long long skew_ns(void)
{
	return skew ? *skew : 0;
}

static void shift(struct timespec *t, long long by)
{
	long long ns = (long long)t->tv_sec * NS + t->tv_nsec + by;

	t->tv_sec = (time_t)(ns / NS);
	t->tv_nsec = (long)(ns % NS);
}

static struct timespec true_deadline(const struct timespec *deadline)
{
	struct timespec t = *deadline;

	shift(&t, -skew_ns());
	return t;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t id, struct timespec *t)
{
	static __typeof__(&clock_gettime) real;
	int rv;

	if (!real)
		real = REAL(clock_gettime);
	rv = real(id, t);
	if (rv == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		shift(t, skew_ns());
	return rv;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec t;
	int rv = clock_gettime(CLOCK_REALTIME, &t);

	(void)zone;
	if (rv == 0) {
		tv->tv_sec = t.tv_sec;
		tv->tv_usec = t.tv_nsec / 1000;
	}
	return rv;
}

time_t time(time_t *out)
{
	struct timespec t;

	if (clock_gettime(CLOCK_REALTIME, &t) != 0)
		return (time_t)-1;
	if (out)
		*out = t.tv_sec;
	return t.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict deadline)
{
	static __typeof__(&pthread_cond_timedwait) real;
	struct timespec t;

	if (!real)
		real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
	/* A condition made for CLOCK_MONOTONIC has a small deadline (since boot), which must not be shifted. */
	if (deadline->tv_sec < 1000000000)
		return real(cond, mutex, deadline);
	t = true_deadline(deadline);
	return real(cond, mutex, &t);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline)
{
	struct timespec t = true_deadline(deadline);

	return REAL(pthread_mutex_timedlock)(mutex, &t);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict deadline)
{
	struct timespec t = true_deadline(deadline);

	return REAL(sem_timedwait)(sem, &t);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *request, struct timespec *remain)
{
	struct timespec t = *request;

	if (id == CLOCK_REALTIME && (flags & TIMER_ABSTIME))
		shift(&t, -skew_ns());
	return REAL(clock_nanosleep)(id, flags, &t, remain);
}
