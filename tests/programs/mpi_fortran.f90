! Collectives of a Fortran program: complex, real, integer and logical types, MPI_IN_PLACE, calls that do not block, and neighbours.
! Every element is compared. Rank 0 prints "done".
program mpi_fortran
  implicit none
  include 'mpif.h'
  integer, parameter :: count = 6001
  complex :: c(count), csum(count)
  double complex :: z(count), zsum(count)
  double precision :: d(count), dmost(count)
  integer :: i(count), isum(count)
  logical :: l(count), every(count), is_right
  integer, allocatable :: parts(:), all_of(:)
  integer :: rank, ranks, error, at, request, total, first, root, ring, near(2)
  integer :: status(MPI_STATUS_SIZE)

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  total = ranks * (ranks + 1) / 2
  do at = 1, count
     c(at) = cmplx(at * (rank + 1), -rank)
     z(at) = dcmplx(1, mod(at + rank, 3))
     d(at) = mod(at * 7 + rank * 13, 101)
     i(at) = at * (rank + 1)
     l(at) = mod(at, ranks) /= rank
  end do

  call MPI_Allreduce(c, csum, count, MPI_COMPLEX, MPI_SUM, MPI_COMM_WORLD, error)
  call MPI_Iallreduce(MPI_IN_PLACE, c, count, MPI_COMPLEX, MPI_SUM, MPI_COMM_WORLD, request, error)
  call MPI_Wait(request, status, error)
  do at = 1, count
     call check(csum(at) == cmplx(at * total, -ranks * (ranks - 1) / 2), 'MPI_COMPLEX', at)
     call check(c(at) == csum(at), 'MPI_COMPLEX in place', at)
  end do

  root = ranks - 1
  call MPI_Reduce(z, zsum, count, MPI_DOUBLE_COMPLEX, MPI_PROD, root, MPI_COMM_WORLD, error)
  if (rank == root) then
     do at = 1, count
        call check(zsum(at) == product_of(at), 'MPI_DOUBLE_COMPLEX', at)
     end do
  end if

  call MPI_Allreduce(d, dmost, count, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
  call MPI_Allreduce(l, every, count, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD, error)
  call MPI_Allreduce(MPI_IN_PLACE, l, count, MPI_LOGICAL, MPI_LOR, MPI_COMM_WORLD, error)
  do at = 1, count
     is_right = .false.
     do first = 0, ranks - 1
        is_right = is_right .or. dmost(at) == mod(at * 7 + first * 13, 101)
     end do
     call check(is_right .and. dmost(at) >= d(at), 'MPI_DOUBLE_PRECISION', at)
     call check(.not. every(at), 'MPI_LOGICAL, all', at)
     call check(l(at), 'MPI_LOGICAL, any', at)
  end do

  ! The last rank gets the rest.
  allocate(parts(ranks))
  parts = count / ranks
  parts(ranks) = count - (ranks - 1) * (count / ranks)
  first = rank * (count / ranks)
  call MPI_Reduce_scatter(i, isum, parts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
  do at = 1, parts(rank + 1)
     call check(isum(at) == (first + at) * total, 'MPI_INTEGER', at)
  end do

  ! A ring of the ranks: the neighbours' numbers.
  call MPI_Cart_create(MPI_COMM_WORLD, 1, [ranks], [.true.], .false., ring, error)
  call MPI_Cart_shift(ring, 0, 1, near(1), near(2), error)
  do at = 1, count
     i(at) = rank * 7 + at
  end do
  allocate(all_of(2 * count))
  all_of = 0
  call MPI_Neighbor_allgather(i, count, MPI_INTEGER, all_of, count, MPI_INTEGER, ring, error)
  call check_ring('MPI_Neighbor_allgather')
  all_of = 0
  call MPI_Ineighbor_allgather(i, count, MPI_INTEGER, all_of, count, MPI_INTEGER, ring, request, error)
  call MPI_Wait(request, status, error)
  call check_ring('MPI_Ineighbor_allgather')
  call MPI_Comm_free(ring, error)

  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_Finalize(error)
  if (rank == 0) print '(a)', 'done'

contains
  subroutine check_ring(what)
    character(*), intent(in) :: what
    integer :: of, to
    do to = 1, 2
       do of = 1, count
          call check(all_of((to - 1) * count + of) == near(to) * 7 + of, what, of)
       end do
    end do
  end subroutine check_ring

  double complex function product_of(at)
    integer, intent(in) :: at
    integer :: of
    product_of = (1, 0)
    do of = 0, ranks - 1
       product_of = product_of * dcmplx(1, mod(at + of, 3))
    end do
  end function product_of

  subroutine check(right, what, at)
    logical, intent(in) :: right
    character(*), intent(in) :: what
    integer, intent(in) :: at
    integer :: failed
    if (right) return
    print '(a, i0, 3a, i0, a)', 'rank ', rank, ', ', what, ': element ', at, ' is wrong'
    call MPI_Abort(MPI_COMM_WORLD, 1, failed)
  end subroutine check
end program mpi_fortran
